// VerbsReceiver: the receiving half of an end: fills the receives of its owner, in their order, with the messages of
// its inboxes, one for each rail. Slices are numbered: what a rail brings early waits in its slot, or cell, for those
// before it. A slice that is to be read from the peer's memory (VerbsReads) has come once it has been read; its receive
// starts then, so one whose slice never comes is as it was posted.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_inbox.h"
#include "transport/verbs/rail/verbs_reads.h"
#include "transport/verbs/rail/verbs_recv_slots.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

class VerbsReceiver {
 public:
  // The pointers outlive it.
  VerbsReceiver(std::vector<VerbsInbox*> inboxes, VerbsRecvSlots* recv_slots, VerbsReads* reads, VerbsReturns* returns,
                VerbsFault* fault)
      : inboxes_(std::move(inboxes)), recv_slots_(recv_slots), reads_(reads), returns_(returns), fault_(fault) {}

  // Queues `recv`. Returns false when as many receives as there are slots are posted or held.
  bool Post(Recv* recv);
  // Fills receives. Returns whether anything changed.
  bool Advance();
  // Begins READs for receives that are posted.
  void Read();
  // Whether it would begin any.
  bool CanRead() const;
  void Release(Recv* recv);
  void FailAll(Code code);

  // Nothing arrives any more, and the slices that have not arrived come another way: what Continuable offers for
  // receives. Forgets what came behind the first slice that has not arrived whole.
  void EndArrivals();
  bool has_for_next() const { return static_cast<int32_t>(slices_ - posted_) > 0; }
  Recv* TakeReceive();
  bool has_partial() const { return has_partial_; }
  Recv* partial() const {
    return has_partial_ && Next() == nullptr && first_ != nullptr && first_->started ? first_ : nullptr;
  }
  void PartialArrived(uint32_t arrived);
  bool Holds(const Recv& recv) const;
  // Slices that have arrived whole, modulo 2^32.
  uint32_t whole_slices() const { return slices_ - (has_partial_ ? 1 : 0); }

  bool has_receives() const { return first_ != nullptr; }
  bool HasWork() const { return first_ != nullptr && Next() != nullptr; }
  // Whether a message waits for a receive, and not for others before it.
  bool has_messages() const { return Next() != nullptr; }

 private:
  // In Recv::cookie, above the slot or cell: the data is in a cell; the sender waits to hear that it was taken; the
  // rail.
  static constexpr uint64_t kCell = uint64_t{1} << 32;
  static constexpr uint64_t kLent = uint64_t{1} << 33;
  static constexpr int kRailShift = 40;

  // A READ that can begin, and its receive.
  struct NextRead {
    size_t rail = 0;
    Recv* recv = nullptr;  // Null: there is none.
  };

  NextRead FindRead() const;
  // The posted receive of the slice with that number; null: it is not posted.
  Recv* ReceiveOf(uint32_t number) const;
  // Whether the data of a message are here.
  bool HasCome(const VerbsMessage& message) const { return !message.header.placed || reads_->IsDone(message.value); }
  // Whether that message, of the next slice, can be taken: it has come, or is too large for its receive.
  bool IsTakeable(const VerbsMessage& message) const {
    return HasCome(message) || (first_ != nullptr && message.header.bytes > first_->capacity);
  }
  // The place of the inbox whose first message is next; inboxes_.size() when it has not arrived.
  size_t NextRail() const {
    size_t rail = 0;
    while (rail < inboxes_.size() &&
           (inboxes_[rail]->empty() || inboxes_[rail]->first().number() != returns_->taken_slices)) {
      ++rail;
    }
    return rail;
  }
  const VerbsInbox* Next() const {
    const size_t rail = NextRail();
    return rail < inboxes_.size() && IsTakeable(inboxes_[rail]->first()) ? inboxes_[rail] : nullptr;
  }
  bool BeginReceive(const VerbsMessage& message, size_t rail);
  void FreeSlot(uint32_t slot);
  void CheckOrder();
  void Pop(Code code);

  const std::vector<VerbsInbox*> inboxes_;
  VerbsRecvSlots* const recv_slots_;
  VerbsReads* const reads_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;
  uint32_t in_use_ = 0;       // Number of receives posted or held.
  uint32_t posted_ = 0;       // Number of receives ever posted, modulo 2^32.
  uint32_t slices_ = 0;       // Once nothing arrives any more: slices that have, or have in part, modulo 2^32.
  bool has_partial_ = false;  // Whether the last one of them is not whole.
  Recv* first_ = nullptr;
  Recv* last_ = nullptr;
};

}  // namespace annulus
