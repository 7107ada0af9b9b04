// MessageRunner: one direction of the messages between two ranks, one message at a time. The queues are in the engine's
// Messages.
//
// Threads: as Runner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collectives/algorithms/message/message_schedule.h"
#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/row.h"
#include "collectives/algorithms/slice_tag.h"

namespace annulus {

// Links of messages. The runners are created on first use.
extern const AlgorithmRow kMessageRow;

// Slice size of messages that are lent (InPlace::Lends), in bytes. Others go in slices of DirectSliceBytes, so that
// both ends copy side by side. A loan is copied once, by the receiver, and each slice costs it a system call. Whoever
// sends chooses.
inline size_t LentSliceBytes(const PlanSettings& settings) {
  return settings.slice_bytes > 0 ? DirectSliceBytes(settings) : settings.largest_slice_bytes;
}

// Largest message that is sent before its receive is known, in bytes; a larger one is offered first. As much as the
// slots of a link: larger messages take so long that an offer and its answer cost them little.
inline size_t EagerBytes(const PlanSettings& settings) {
  return static_cast<size_t>(settings.slots) * SlotBytes(settings);
}

// The same between two ranks that use tags: what nobody asks for is then in the way of others, and little of it may be
// unasked.
inline size_t EagerBytesWithTags(const PlanSettings& settings) {
  return std::min(size_t{32} * 1024, EagerBytes(settings));
}

// What a rank may hold of messages that no receive has asked for, in bytes: of each peer, enough for one with a tag and
// what is noted about it; and of all together beyond that.
inline size_t HeldShareBytes(const PlanSettings& settings) { return EagerBytesWithTags(settings) + 512; }
inline size_t HeldTogetherBytes(const PlanSettings& settings) { return 2 * EagerBytes(settings); }
inline size_t HeldBytes(int nranks, const PlanSettings& settings) {
  return HeldTogetherBytes(settings) + static_cast<size_t>(nranks - 1) * HeldShareBytes(settings);
}

// What a slice between two ranks is, in the operation of its tag. The message's number, type, count and tag are the
// call's sequence, type, count and root.
enum class MessageForm : uint8_t {
  kData = 0,    // A slice of the message.
  kNotice = 1,  // The message's data follows at once. Precedes messages with a tag other than 0.
  kOffer = 2,   // The message waits for a grant.
  kGrant = 3,   // The receiver has a receive for the message with that number, which its peer has offered.
  kBegin = 4,   // The data of an offered message follows at once.
};

// Channel of messages, which have links of their own.
inline int MessageChannel(const PlanSettings& settings) { return settings.channels; }

// What became of a message that was to move at once: nothing; nothing, and looking again is of no use, since a slice
// has come that has to be received properly; it has ended; or the link has begun it, with a copy of the data or with
// the user's memory lent, so that it goes on as if started.
enum class AtOnce : uint8_t { kNo, kNever, kDone, kBegun };

class MessageRunner final : public PipelineRunner {
 public:
  MessageRunner(Endpoint* endpoint, const PlanSettings& settings);

  void Start(const ScheduleParams& params, const Work* work) override { Start(params, work, nullptr); }
  // `first` is the receive of the first slice if that is already posted, and stays valid until done().
  void Start(const ScheduleParams& params, const Work* work, Recv* first);

  // Short cut in place of Start, for `bytes` in host memory over a link that has a short path. `call` is the message's
  // identity, as Work::call. Sends or receives the message if that is possible at once; looks for it `polls` times, or
  // less often where a look is a system call. kNo and kNever: nothing has happened. Nothing allocates.
  AtOnce SendAtOnce(const Call& call, const std::byte* data, size_t bytes) {
    return SendsWhole(bytes) ? SendWhole(call, data, bytes) : SendOrBegin(call, data, bytes);
  }
  // SendAtOnce for a message that is not lent, of which CopiesWhole is true.
  AtOnce SendWhole(const Call& call, const std::byte* data, size_t bytes) {
    if (short_path_ == nullptr || bytes > short_bytes_) return AtOnce::kNo;
    if (!short_path_->SendCopy(TagOf(call), data, static_cast<uint32_t>(bytes)).ok()) return AtOnce::kNo;
    short_path_->Flush();
    return AtOnce::kDone;
  }
  AtOnce ReceiveAtOnce(const Call& call, std::byte* data, size_t bytes, int polls) {
    if (short_path_ == nullptr || bytes > std::max(short_bytes_, lent_bytes_)) return AtOnce::kNever;
    ShortPath::Slice slice;
    if (!shares_memory_) polls /= kPollsPerSystemCall;
    bool came = false;
    for (int poll = 0; poll < polls && !came; ++poll) came = short_path_->Peek(&slice);
    return came ? TakeSlice(slice, call, data, bytes) : AtOnce::kNo;
  }
  // Whether a message of that size is copied into the link at once, unless it is lent: what SendWhole is for.
  bool CopiesWhole(size_t bytes) const { return bytes < whole_.end; }
  // Whether SendAtOnce does not return kBegun for the next message, if it has that size.
  bool SendsWhole(size_t bytes) const {
    if (!CopiesWhole(bytes)) return false;
    return bytes < kLeastLentAtOnceBytes || whole_.in_place == nullptr || !whole_.in_place->MayLend();
  }

  // Asks the link to lend the first slice of a message in host memory, if it is posted next (InPlace::Lends).
  bool AsksToLend(const std::byte* data, size_t bytes) const;

  bool done() const override { return !flushes_ && PipelineRunner::done(); }
  // Whether Advance moves the link, too.
  bool moves_link() const { return flushes_; }
  bool WaitsFor(const Endpoint* endpoint) const override { return flushes_ || PipelineRunner::WaitsFor(endpoint); }
  int AwaitedPeer() const override { return flushes_ ? endpoint_->peer() : PipelineRunner::AwaitedPeer(); }

  static size_t MemoryBytes(const PlanSettings& settings) {
    return sizeof(MessageRunner) + Pipeline::MemoryBytes(WindowSteps(settings));
  }

  // Sends what the link still has of work that was begun at once.
  Status Advance(bool* moved) override;

 private:
  // Largest message that is sent at once by a copy, in bytes, where the link does not lend. The copy is made
  // within the call, also when an asynchronous message is submitted. Half a ping-pong over shared memory took 0.25 us
  // for 1 KiB where it takes 0.87 otherwise, 4.8 for 32 KiB where it takes 5.1, and the same from 64 KiB on (AMD EPYC,
  // a virtual machine with two cores).
  static constexpr size_t kMostCopiedAtOnceBytes = 32 * 1024;
  // Messages that are lent at once, if the link lends. Their receives copy them with the queue's lock held, up to 25
  // us: less than it takes to wake a thread that waits for a turn.
  static constexpr size_t kLeastLentAtOnceBytes = 16 * 1024;
  static constexpr size_t kMostLentAtOnceBytes = 256 * 1024;
  // A look at a socket is a system call, so there is one in place of this many at memory. A choice, not a measured
  // optimum.
  static constexpr int kPollsPerSystemCall = 16;

  static bool Lends(const Limits& limits) { return limits.shares_memory && limits.may_land_in.Has(MemoryKind::kHost); }

  // As the pipeline tags the only slice of a message.
  Tag TagOf(const Call& call) const { return PackTag(call, {0, 0, channel_}); }
  AtOnce SendOrBegin(const Call& call, const std::byte* data, size_t bytes);
  // The rest of ReceiveAtOnce for a slice that has come.
  AtOnce TakeSlice(const ShortPath::Slice& slice, const Call& call, std::byte* data, size_t bytes) {
    // Receiving it properly says what is wrong with another slice.
    if (slice.bytes != bytes || !SameTag(slice.tag, TagOf(call))) return AtOnce::kNever;
    if (slice.data == nullptr && !short_path_->PopInto(data)) return AtOnce::kNo;
    if (slice.data != nullptr) {
      if (bytes > 0) std::memcpy(data, slice.data, bytes);
      short_path_->Pop();
    }
    short_path_->Flush();
    return AtOnce::kDone;
  }
  AtOnce LendAtOnce(const Call& call, const std::byte* data, size_t bytes);

  Endpoint* const endpoint_;
  const uint32_t channel_;
  ShortPath* const short_path_;  // Null: messages cannot be moved at once.
  const size_t short_bytes_;     // Largest message that can by a copy, in bytes.
  const size_t lent_slice_bytes_;
  const size_t lent_bytes_;  // Largest message that can at all, in bytes.
  const bool shares_memory_;
  // What SendsWhole looks at.
  const struct {
    size_t end;
    const InPlace* in_place;  // Null: nothing is lent.
  } whole_;
  bool flushes_ = false;  // The work was begun at once.
  Send lent_;             // The slice of a message that was begun at once by lending it.
  MessageSchedule schedule_;
};

}  // namespace annulus
