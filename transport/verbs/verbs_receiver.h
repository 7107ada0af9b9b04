// VerbsReceiver: the receiving half of an end: keeps receives posted to the device, and fills the receives of its
// owner, in their order, with the messages of its inbox.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_inbox.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_target.h"

namespace annulus {

class VerbsReceiver {
 public:
  // The pointers outlive it. `target` gets the credits that messages return.
  VerbsReceiver(int slots, size_t slot_bytes, const VerbsRecvMemory& memory, VerbsQueuePair* pair, VerbsTarget* target,
                VerbsReturns* returns, VerbsFault* fault);

  // Posts all receives to the device. `key`: local key of the cells.
  void PostCells(uint32_t key);

  // Takes the message that a receive of the device completed with.
  void TakeCompletion(const ibv_wc& completion, uint32_t cell);

  // Queues `recv`. Returns false when as many receives as there are slots are posted or held.
  bool Post(Recv* recv);
  // Fills receives. Returns whether anything changed.
  bool Advance();
  void Release(Recv* recv);
  void FailAll(Code code);
  // The peer has left, and its device says that so many messages have arrived.
  void TakeFarewell(uint32_t sent);

  // The link has stopped, and other slices than those that have arrived come another way: what Continuable offers for
  // receives.
  bool has_for_next() const { return static_cast<int32_t>(inbox_.slices() - posted_) > 0; }
  Recv* TakeBack();
  bool has_partial() const { return inbox_.has_partial(); }
  Recv* partial() const {
    return has_partial() && inbox_.empty() && first_ != nullptr && first_->started ? first_ : nullptr;
  }
  void PartialArrived(uint32_t arrived);
  bool Holds(const Recv& recv) const { return inbox_.Has(recv.data); }
  // Slices that have arrived whole, modulo 2^32.
  uint32_t whole_slices() const { return inbox_.slices() - (has_partial() ? 1 : 0); }

  // A receive of the device completed without a message.
  void TakeFailure() { --cells_posted_; }
  // Whether the device has given back all receives.
  bool drained() const { return cells_posted_ == 0; }

  bool has_receives() const { return first_ != nullptr; }
  bool HasWork() const { return first_ != nullptr && !inbox_.empty(); }
  bool has_messages() const { return !inbox_.empty(); }
  // Messages that have arrived, modulo 2^32.
  uint32_t received() const { return inbox_.received(); }

 private:
  // In Recv::cookie: the data is in a cell, not in a slot; the sender waits to hear that it was taken.
  static constexpr uint64_t kCell = uint64_t{1} << 32;
  static constexpr uint64_t kLent = uint64_t{1} << 33;

  void Repost(uint32_t cell);
  bool Start(const VerbsMessage& message);
  void Pop(Code code);

  const uint32_t slots_;
  VerbsQueuePair* const pair_;
  VerbsTarget* const target_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;
  VerbsInbox inbox_;
  uint32_t key_ = 0;           // Local key of the cells' memory.
  uint32_t cells_posted_ = 0;  // Number of receives that the device has.
  uint32_t in_use_ = 0;        // Number of receives posted or held.
  uint32_t posted_ = 0;        // Number of receives ever posted, modulo 2^32.
  uint32_t completed_ = 0;     // Number of slices ever delivered, modulo 2^32.
  Recv* first_ = nullptr;
  Recv* last_ = nullptr;
};

}  // namespace annulus
