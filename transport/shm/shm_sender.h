// ShmSender: the sending half of an end: lends slots, publishes slices in order, takes returned slots back.
//
// A slice of up to ShmDescriptor::kPayloadBytes travels inside its descriptor, and its slot never leaves this end. A
// larger one stays in its slot, which the peer returns by and by. The slot that came back first is lent first: writing
// is dear where the peer still has the lines in its second-level cache, from which they must be taken away, and those
// of the slot that it read longest ago have gone from there to the cache that both share.
//
// A slice in registered memory is read there by the peer. It takes a slot along, unused, as its ticket: so the bounds
// and the way back are those of every other slice. It completes when that slot comes back.
//
// Threads: as the endpoint. Its owner rings the peer's bell after Publish() said that something is new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_regions.h"
#include "transport/transport.h"

namespace annulus {

class ShmSender {
 public:
  // `regions` outlives the sender.
  ShmSender(const ShmDirection& shared, ShmOwnRegions* regions);

  // Smaller slices are not worth the way back that their completion takes.
  static constexpr size_t kLeastInPlace = 4096;
  // Whether Post takes this memory, which is no slot.
  bool TakesInPlace(const std::byte* data, size_t bytes) {
    ShmPlace place;
    return bytes >= kLeastInPlace && bytes <= shared_.slot_bytes && regions_->Find(data, bytes, &place);
  }

  // Lends a free slot; null when there is none. Takes returned slots back first, and checks them.
  std::byte* Acquire(ShmFault* fault);

  // Times the look for a returned slot, when that finds one; how long it took, else 0. Takes nothing.
  Nanoseconds TimeReturn() const;
  // Writes something to each line of the first `bytes` of a lent slot; how long it took, 0 where the peer has not read
  // as much of it.
  Nanoseconds TimeRewrite(std::byte* slot, size_t bytes);

  // Takes back what the peer has returned; whether there was anything.
  bool TakeReturns(ShmFault* fault);

  // Queues `send`; Publish() may publish it at once. Errors: kInvalidArgument; would_block when data in place finds no
  // slot.
  Status Post(Send* send, ShmFault* fault);

  // Publishes a slice at once, from a copy: inside its descriptor or in a slot. False while others wait or there is no
  // room.
  bool PublishShort(const Tag& tag, const std::byte* data, uint32_t bytes, ShmFault* fault);
  bool HasRoomForShort(ShmFault* fault) { return MayPublish(fault) && num_free_ > 0; }
  // The same for a slot from Acquire, filled, which is the peer's then. Only while MayPublish().
  void PublishLent(const Tag& tag, const std::byte* slot, uint32_t bytes);
  bool MayPublish(ShmFault* fault) { return first_ == nullptr && HasRoom(fault); }

  // Fetches the descriptor that comes next for writing, ahead of time: the peer has read it long ago.
  void PrepareNext() const {
#if defined(__x86_64__)
    // The builtin gives this instruction only where all CPUs compiled for have it; others ignore it.
    asm volatile("prefetchw %0" : : "m"(NextDescriptor().ticket));
#else
    __builtin_prefetch(&NextDescriptor(), 1);
#endif
  }

  // Publishes what has become ready and has room; whether there was anything.
  bool Publish(ShmFault* fault);

  // Completes what is published and, where it lies in place, read. Whether there was anything.
  bool Complete(ShmFault* fault);

  // Whether Publish() or Complete() would do anything.
  bool HasWork(ShmFault* fault);
  bool idle() const { return first_ == nullptr; }

  // Completes everything queued with `code`, in order.
  void FailAll(Code code);

 private:
  enum class State : uint8_t {
    kFree,
    kLent,
    kPosted,
    kAtPeer,
    kInPlace,      // Stands for data that the peer has not read yet,
    kInPlaceRead,  // or has.
  };
  struct Slot {
    State state = State::kFree;
    ShmPlace place{};         // Of data in place.
    uint32_t read_bytes = 0;  // Of the slot, by the peer, when it was there last.
  };

  uint64_t published() const { return next_ticket_ - 1; }
  ShmDescriptor& NextDescriptor() const { return shared_.ring[published() & (shared_.ring_entries - 1)]; }
  // In Send::cookie, with the slot's index: the slot is still this send's.
  static constexpr uint64_t kTied = uint64_t{1} << 32;

  std::byte* LendFree(ShmFault* fault);
  bool OwnsAsLent(const std::byte* data) const;
  Status TakeSlotFor(Send* send, ShmFault* fault);
  bool IsRead(const Send& send) const;
  bool HasRoom(ShmFault* fault);
  void PublishOne(Send* send);
  void Announce(const Tag& tag, uint32_t word, uint32_t bytes);
  void Free(uint32_t slot);
  void FreeAtHome(uint32_t slot);  // Nothing of it was at the peer, so it is lent next.
  uint32_t TakeFree();
  size_t IndexOf(const std::byte* slot) const {
    return static_cast<size_t>(slot - shared_.slots) / shared_.slot_stride;
  }
  void Pop(Code code);

  const ShmDirection shared_;
  ShmOwnRegions* const regions_;
  uint64_t next_ticket_ = 1;     // Of the next slice to publish.
  uint64_t known_consumed_ = 0;  // The peer's counter when last read; read anew only when the ring seems full.
  uint64_t next_return_ = 1;     // Ticket of the next returned slot.
  std::vector<uint32_t> free_;   // A ring, which starts at first_free_: returned first, lent first.
  size_t first_free_ = 0;
  size_t num_free_ = 0;
  std::vector<Slot> slots_;      // What the peer says is checked against it.
  Send* first_ = nullptr;        // Oldest queued.
  Send* unpublished_ = nullptr;  // Oldest not published; from first_ up to here only completion is missing.
  Send* last_ = nullptr;
};

inline bool ShmSender::HasRoom(ShmFault* fault) {
  if (published() - known_consumed_ < shared_.ring_entries) return true;
  const uint64_t consumed = shared_.consumed->load(std::memory_order_acquire);
  if (consumed > published() || consumed < known_consumed_) {
    *fault = {"consumed", consumed, published()};
    return false;
  }
  known_consumed_ = consumed;
  return published() - consumed < shared_.ring_entries;
}

// Whether nobody needs its memory any more, once it is published.
inline bool ShmSender::IsRead(const Send& send) const {
  return (send.cookie & kTied) == 0 || slots_[static_cast<uint32_t>(send.cookie)].state != State::kInPlace;
}

inline bool ShmSender::HasWork(ShmFault* fault) {
  if (first_ == nullptr) return false;
  if (first_ != unpublished_ && IsRead(*first_)) return true;
  return unpublished_ != nullptr && unpublished_->ready == unpublished_->bytes && HasRoom(fault);
}

}  // namespace annulus
