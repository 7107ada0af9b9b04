// ShmSender: the sending half of an end: lends slots, publishes slices in order, takes returned slots back.
//
// A slice of up to ShmDescriptor::kPayloadBytes travels inside its descriptor, and its slot never leaves this end. A
// larger one stays in its slot, which the peer returns by and by. The free slot that was used last is lent first, so
// that a link in balance works in few slots, which stay in the cache.
//
// Threads: as the endpoint. Its owner rings the peer's bell after Publish() said that something is new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/shm/shm_format.h"
#include "transport/transport.h"

namespace annulus {

class ShmSender {
 public:
  explicit ShmSender(const ShmDirection& shared);

  // Lends a free slot; null when there is none. Takes returned slots back first, and checks them.
  std::byte* Acquire(ShmFault* fault);

  // Takes back what the peer has returned; whether there was anything.
  bool TakeReturns(ShmFault* fault);

  // Queues `send`; Publish() may publish it at once. Errors: kInvalidArgument.
  Status Post(Send* send);

  // Publishes what has become ready and has room; whether there was anything.
  bool Publish(ShmFault* fault);

  // Completes what is published. Whether there was anything.
  bool Complete();

  // Whether Publish() or Complete() would do anything.
  bool HasWork(ShmFault* fault);
  bool idle() const { return first_ == nullptr; }

  // Completes everything queued with `code`, in order.
  void FailAll(Code code);

 private:
  enum class Place : uint8_t { kFree, kLent, kPosted, kAtPeer };

  uint64_t published() const { return next_ticket_ - 1; }
  bool HasRoom(ShmFault* fault);
  void PublishOne(const Send& send);
  void Free(uint32_t slot);
  void Pop(Code code);

  const ShmDirection shared_;
  uint64_t next_ticket_ = 1;     // Of the next slice to publish.
  uint64_t known_consumed_ = 0;  // The peer's counter when last read; read anew only when the ring seems full.
  uint64_t next_return_ = 1;     // Ticket of the next returned slot.
  std::vector<uint32_t> free_;   // A stack: used last, lent first.
  std::vector<Place> places_;    // By slot. What the peer says is checked against it.
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

inline bool ShmSender::HasWork(ShmFault* fault) {
  if (first_ == nullptr) return false;
  return first_ != unpublished_ || (unpublished_->ready == unpublished_->bytes && HasRoom(fault));
}

}  // namespace annulus
