// ShmSender: the sending half of an end: lends slots, publishes slices in order, takes returned slots back.
//
// A slice of up to ShmDescriptor::kPayloadBytes travels inside its descriptor, and its slot never leaves this end. A
// larger slice stays in its slot, which the peer returns later. The slot that came back first is lent first. Writing to
// a slot is expensive while the peer still has its lines in its second-level cache, because they must be invalidated
// there. The lines that the peer read longest ago have moved from there to the cache that both share. So a slot's
// slices may begin behind each other in it, until its end, and not all at its beginning (ShmPlacing).
//
// A slice in registered memory, or in a device's, is read there by the peer, or by its device. It takes a slot along,
// unused, as its ticket, so that the same bounds and the same return path apply as for every other slice. It completes
// when that slot comes back.
//
// A slice in other memory of the user may be lent: the peer copies it from there by the kernel (ShmPeerMemory), if it
// comes soon. Otherwise this end copies it into the slot that it has taken along. The slot's claim decides who does.
//
// Threads: as the endpoint. The owner rings the peer's bell after Publish() has reported that something is new.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_loan_choice.h"
#include "transport/shm/shm_own_devices.h"
#include "transport/shm/shm_regions.h"
#include "transport/transport.h"

namespace annulus {

// Where slices go in their slots.
enum class ShmPlacing : uint8_t {
  kAtBeginning,
  kInTurn,  // Behind the slot's last one, if there is room; from kLeastInTurn on.
};

class ShmSender {
 public:
  // `regions` and `devices` outlive the sender.
  ShmSender(const ShmDirection& shared, ShmOwnRegions* regions, ShmOwnDevices* devices = nullptr);

  // Smallest slice to send in place, in bytes. For a smaller one the return trip that its completion takes is not worth
  // it.
  static constexpr size_t kLeastInPlace = 4096;
  // The same for memory of a device, in bytes. A device's copy takes about 10 us however small it is, and a smaller
  // slice is faster through a slot, whose send does not wait for the receiver's copy. As over verbs.
  static constexpr size_t kLeastOnDevice = 32 * 1024;
  // Whether Post accepts this memory, which is not a slot.
  bool AcceptsInPlace(const std::byte* data, size_t bytes) {
    ShmPlace place;
    return bytes <= shared_.slot_bytes && FindPlace(data, bytes, &place);
  }

  // Smallest slice to lend, in bytes. For a smaller one the system call takes longer than the copy that it saves.
  static constexpr size_t kLeastLent = ShmPace::kLeastTimed;
  // Time for which a lent slice waits for the peer; then it is copied into its slot, which takes about as long. Those
  // behind it do not wait again until the peer has read one.
  static constexpr Nanoseconds LoanPatience(size_t bytes) {
    constexpr size_t kBytesPerNanosecond = 8;
    return kMicrosecond + static_cast<Nanoseconds>(bytes / kBytesPerNanosecond);
  }
  // Time between looks at a claim while the peer reads: each takes the line from the peer, which is to write it.
  static constexpr Nanoseconds PauseWhileRead(size_t bytes) {
    constexpr size_t kMostBytes = 64 * 1024;
    return static_cast<Nanoseconds>(std::min(bytes, kMostBytes) / 128);
  }
  // Whether the next Post accepts this memory, which is not a slot, to be lent.
  bool Lends(const std::byte* data, size_t bytes) {
    loan_.next = nullptr;
    if (bytes < kLeastLent || bytes > shared_.slot_bytes || AcceptsInPlace(data, bytes)) return false;
    loan_.next = data;
    loan_.next_bytes = bytes;
    return true;
  }
  // The peer had to be woken: what is lent now is copied before it comes.
  void HurryLoans() { loan_.is_late = true; }
  // The next Complete looks at a claim even if it has looked only now.
  void LookAtOnce() { loan_.look_at = 0; }

  // Smallest slice that is put behind the last one, in bytes. Smaller ones are faster where they were, each slot's in
  // a place of its own.
  static constexpr size_t kLeastInTurn = 2 * 1024;
  // How much of each slot is used in turn, in bytes: all of it at first.
  void LimitTurns(size_t bytes) { turn_bytes_ = bytes; }

  // Lends a free slot for up to `bytes`; null when there is none. First takes returned slots back and checks them.
  std::byte* Acquire(size_t bytes, ShmPlacing placing, ShmFault* fault);

  // Returns how long it took to find a returned slot, in nanoseconds; 0 when none was found, or the same one as before,
  // whose line is here since then. Does not take the slot.
  Nanoseconds TimeReturn();
  // Writes to each line of the first `bytes` of a lent slot. Returns how long that took, in nanoseconds; 0 when the
  // peer has not read that many bytes of the slot.
  Nanoseconds TimeRewrite(std::byte* slot, size_t bytes);

  // Takes back the slots that the peer has returned. Returns whether there were any.
  bool CollectReturns(ShmFault* fault);

  // Queues `send`; Publish() may publish it at once. Errors: kInvalidArgument; would_block when there is no slot for
  // data in place.
  Status Post(Send* send, ShmFault* fault);

  // Publishes a copy of a slice at once, inside its descriptor or in a slot. Returns false while other sends wait or
  // there is no room.
  bool PublishShort(const Tag& tag, const std::byte* data, uint32_t bytes, ShmFault* fault) {
    if (!MayPublish(fault)) return false;
    expected_.bytes = 0;
    loan_.is_latest = false;
    if (bytes > ShmDescriptor::kPayloadBytes) return PublishInSlot(tag, data, bytes, fault);
    if (bytes > 0) std::memcpy(NextDescriptor().payload, data, bytes);
    Announce(tag, kShmInline, bytes);
    return true;
  }
  bool HasRoomForShort(ShmFault* fault) { return MayPublish(fault) && free_.number > 0; }
  // The same for a filled slot from Acquire, which belongs to the peer from then on. Only while MayPublish().
  void PublishLent(const Tag& tag, const std::byte* slot, uint32_t bytes);
  // PublishLent took a short slice; the next one is probably like it. 0 bytes: nothing is to be prefetched for that.
  void ExpectMore(size_t bytes, ShmPlacing placing) {
    loan_.is_latest = false;
    expected_.bytes = bytes;
    expected_.placing = placing;
  }
  // Slots of which the peer has read so many bytes are not prefetched from now on: TimeRewrite is to find such ones.
  void Spare(size_t read_bytes) { expected_.spared = read_bytes; }
  bool MayPublish(ShmFault* fault) { return first_ == nullptr && HasRoom(fault); }

  // Prefetches for writing what the next slice probably needs, which the peer has read long ago: a descriptor and, if
  // the latest short slice went by a slot, the place of one, or if the latest slice was lent, a claim.
  void PrepareNext() {
    PrefetchForWriting(&NextDescriptor());
    if (free_.number > 0 && loan_.is_latest) PrefetchForWriting(&shared_.claims[free_.ring[free_.first]]);
    // The next slot but one: the lines take as long to come as a message does.
    if (expected_.bytes == 0 || free_.number < 2) return;
    const uint32_t slot = free_.ring[(free_.first + 1) % free_.ring.size()];
    if (slots_[slot].read_bytes >= expected_.spared) return;
    slots_[slot].read_bytes = 0;  // Its lines are here, so TimeRewrite would learn nothing.
    const std::byte* const begin = SlotAt(slot) + NextBegin(slot, expected_.bytes, expected_.placing);
    const size_t bytes = std::min<size_t>(expected_.bytes, kMostPrepared);
    for (size_t at = 0; at < bytes; at += kLineBytes) PrefetchForWriting(begin + at);
  }

  // Publishes every slice that is ready and has room. Returns whether there was any.
  bool Publish(ShmFault* fault);

  // Completes sends that are published and, for data in place, read by the peer. Returns whether there were any. Sets
  // *copied when a lent slice has come into its slot, for which the peer may sleep.
  bool Complete(bool* copied, ShmFault* fault);

  // Whether Publish() or Complete() would do anything.
  bool HasWork(ShmFault* fault);
  bool idle() const { return first_ == nullptr; }

  // As InPlace::Withdraw.
  void Withdraw();

  // Completes everything queued with `code`, in order. Nothing is published any more.
  void FailAll(Code code);

 private:
  enum class State : uint8_t {
    kFree,
    kLent,
    kPosted,
    kAtPeer,
    kInPlace,      // Stands for data in place that the peer has not read yet.
    kInPlaceRead,  // Stands for data in place that the peer has read.
    kLoan,         // Its data lies in the user's memory.
    kWithdrawn,    // It did, and is not to be taken for valid any more.
  };
  struct Slot {
    State state = State::kFree;
    ShmPlace place{};         // Location of the data, if it lies in place.
    uint32_t begin = 0;       // Where its slice begins, or the last one did.
    uint32_t end = 0;         // Where that ended, if it was put there to be sent; else 0.
    uint32_t read_bytes = 0;  // Bytes, from there on, that the peer read when it last had the slot.
  };

  static constexpr size_t kLineBytes = 64;
  // Most of a slot that is prefetched, in bytes: more lines than that would be evicted, or keep a processor waiting.
  static constexpr size_t kMostPrepared = 4096;

  static void PrefetchForWriting(const void* line) {
#if defined(__x86_64__)
    // The builtin emits this instruction only if all CPUs compiled for have it. CPUs without it ignore it.
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
  }
  uint64_t published() const { return next_ticket_ - 1; }
  ShmDescriptor& NextDescriptor() const { return shared_.ring[published() & (shared_.ring_entries - 1)]; }
  // Flag in Send::cookie, beside the slot's index: the slot still belongs to this send.
  static constexpr uint64_t kTied = uint64_t{1} << 32;

  bool FindPlace(const std::byte* data, size_t bytes, ShmPlace* place) {
    if (bytes >= kLeastInPlace && in_place_.regions->Find(data, bytes, place)) return true;
    return bytes >= kLeastOnDevice && in_place_.devices != nullptr && in_place_.devices->Find(data, bytes, place);
  }
  // Looking for returned slots costs as much as transferring a line of data, so it is not done for each slice.
  void CollectIfFew(ShmFault* fault) {
    if (2 * free_.number <= shared_.num_slots) CollectReturns(fault);
  }
  std::byte* LendFree(size_t bytes, ShmPlacing placing, ShmFault* fault);
  uint32_t NextBegin(uint32_t slot, size_t bytes, ShmPlacing placing) const;
  bool OwnsAsLent(const std::byte* data) const;
  Status AssignSlot(Send* send, ShmFault* fault);
  bool IsRead(const Send& send) const;
  bool IsLoan(const Send& send) const {
    return (send.cookie & kTied) != 0 && slots_[static_cast<uint32_t>(send.cookie)].state == State::kLoan;
  }
  // A loan must not be slept over, since nobody rings when patience ends, except while the peer reads it.
  bool LoanMoves(const Send& send) const {
    return IsLoan(send) && shared_.claims[static_cast<uint32_t>(send.cookie)].state.load(std::memory_order_acquire) !=
                               ShmClaimState::kReading;
  }
  bool HasRoom(ShmFault* fault);
  void PublishOne(Send* send);
  void Announce(const Tag& tag, uint32_t word, uint32_t bytes) {
    ShmDescriptor& descriptor = NextDescriptor();
    std::memcpy(descriptor.tag, tag.words.data(), sizeof(descriptor.tag));
    descriptor.slot.store(word, std::memory_order_relaxed);
    descriptor.bytes.store(bytes, std::memory_order_relaxed);
    // Releases the slot's content and the descriptor's; the receiver acquires it.
    descriptor.ticket.store(next_ticket_++, std::memory_order_release);
  }
  // PublishShort for what is larger than a descriptor takes.
  bool PublishInSlot(const Tag& tag, const std::byte* data, uint32_t bytes, ShmFault* fault);
  void Free(uint32_t slot);
  void FreeAtHome(uint32_t slot);  // Its content never went to the peer, so it is lent next.
  uint32_t TakeFree();
  // Whether the user's memory of a lent slice is not needed any more. Copies the data to its slot if the peer does not
  // come.
  bool EndsLoan(Send* send, bool* copied, ShmFault* fault);
  std::byte* SlotAt(uint32_t slot) const { return shared_.slots + slot * shared_.slot_stride; }
  std::byte* SliceAt(uint32_t slot) const { return SlotAt(slot) + slots_[slot].begin; }
  // The next descriptor is of a slice in this slot, which is the peer's from then on.
  void Hand(uint32_t slot, uint32_t bytes) {
    Slot& handed = slots_[slot];
    handed.state = State::kAtPeer;
    handed.end = handed.begin + bytes;
    handed.read_bytes = bytes;
    const ShmBegin begin = handed.begin;
    std::memcpy(NextDescriptor().payload, &begin, sizeof(begin));
  }
  size_t IndexOf(const std::byte* slot) const {
    return static_cast<size_t>(slot - shared_.slots) / shared_.slot_stride;
  }
  void Pop(Code code);

  const ShmDirection shared_;
  const struct {
    ShmOwnRegions* regions;
    ShmOwnDevices* devices;  // May be null.
  } in_place_;
  size_t turn_bytes_ = SIZE_MAX;  // Of each slot, as in LimitTurns.
  uint64_t next_ticket_ = 1;      // Ticket of the next slice to publish.
  // The peer's counter when last read; read again only when the ring seems full. Above published(): nothing is
  // published any more.
  uint64_t known_consumed_ = 0;
  uint64_t next_return_ = 1;   // Ticket of the next returned slot.
  uint64_t timed_return_ = 0;  // That of the last one that was timed.
  struct {
    std::vector<uint32_t> ring;  // Starts at `first`: returned first, lent first.
    size_t first = 0;
    size_t number = 0;
  } free_;
  // What PrepareNext prefetches a slot for.
  struct {
    size_t bytes = 0;  // 0: for nothing.
    ShmPlacing placing{};
    size_t spared = SIZE_MAX;
  } expected_;
  std::vector<Slot> slots_;  // State by slot; the peer's returns are checked against it.
  struct {
    const std::byte* next = nullptr;  // Memory that the next Post lends; null: none.
    size_t next_bytes = 0;
    bool is_late = false;           // The peer did not come in time.
    bool is_latest = false;         // The latest send was lent.
    const Send* awaited = nullptr;  // The lent slice that everything waits for; null: none does.
    Nanoseconds since = 0;          // Since when it does.
    Nanoseconds look_at = 0;        // When to look at its claim again.
  } loan_;
  Send* first_ = nullptr;        // Oldest queued.
  Send* unpublished_ = nullptr;  // Oldest unpublished; from first_ up to it only completion is missing.
  Send* last_ = nullptr;
};

inline bool ShmSender::HasRoom(ShmFault* fault) {
  if (published() - known_consumed_ < shared_.ring_entries) return true;
  if (known_consumed_ > published()) return false;
  const uint64_t consumed = shared_.consumed->load(std::memory_order_acquire);
  if (consumed > published() || consumed < known_consumed_) {
    *fault = {"consumed", consumed, published()};
    return false;
  }
  known_consumed_ = consumed;
  return published() - consumed < shared_.ring_entries;
}

// Whether nobody needs the memory of a published send any more, as far as is known.
inline bool ShmSender::IsRead(const Send& send) const {
  if ((send.cookie & kTied) == 0) return true;
  const State state = slots_[static_cast<uint32_t>(send.cookie)].state;
  return state != State::kInPlace && state != State::kLoan && state != State::kWithdrawn;
}

inline bool ShmSender::HasWork(ShmFault* fault) {
  if (first_ == nullptr) return false;
  if (first_ != unpublished_ && (IsRead(*first_) || LoanMoves(*first_))) return true;
  return unpublished_ != nullptr && unpublished_->ready == unpublished_->bytes && HasRoom(fault);
}

}  // namespace annulus
