// DomainQueue: the work of one communicator in one memory domain that has its own processor, such as a GPU.
//
// Submitted work completes later. Its order is restricted only by its own Submit/Poll dependencies: the engine never
// relies on the order of two operations unless it saw the first one done. The operands of an operation may lie in the
// queue's domain, in slots (transport/memory/slot_memory.h) and in other host memory, in any combination.
//
// Host memory has no queue: the CPU works on it at once (Submission).
//
// Threads: one at a time, the one that drives the communicator; kind() and Check() from any thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collectives/reduce/reducer.h"
#include "collectives/reduce/shared_memory.h"
#include "transport/memory/memory_kind.h"

namespace annulus {

class DomainQueue {
 public:
  using Ticket = uint64_t;
  static constexpr Ticket kCompleted = 0;

  explicit DomainQueue(MemoryKind kind) : kind_(kind) {}
  virtual ~DomainQueue() = default;
  DomainQueue(const DomainQueue&) = delete;
  DomainQueue& operator=(const DomainQueue&) = delete;

  MemoryKind kind() const { return kind_; }

  // Starts `op`. Its buffers are borrowed until Poll(*ticket) reports it done, or Drain.
  // Errors: would_block when the queue is full; otherwise permanent.
  Status Submit(const SliceOp& op, Ticket* ticket) {
    Status status = SubmitAsync(op, ticket);
    if (status.ok() && *ticket != kCompleted) ++unfinished_;
    return status;
  }

  // Sets *done to whether the work of `ticket` has finished. Its results are then visible to the CPU, where the CPU can
  // access them. After *done was set, the ticket is no longer valid.
  Status Poll(Ticket ticket, bool* done) {
    Status status = PollAsync(ticket, done);
    if (status.ok() && *done) --unfinished_;
    return status;
  }

  // Number of operations that were submitted and not yet seen done.
  int unfinished() const { return unfinished_; }

  // An eventfd that becomes readable whenever submitted work finishes; the watcher empties it. Does not change, and
  // belongs to the queue. -1: there is none, and only polling tells.
  virtual int wake_fd() const { return -1; }

  // How other processes reach the domain's memory, and this one theirs; null: they do not.
  virtual SharedMemory* shared() { return nullptr; }

  // Whether the devices still are what they were when calls were prepared for them. Any thread. Errors: kSystem: one is
  // not; then the queue can do nothing for it ever again.
  virtual Status Check() { return Status(); }

  // Returns once no submitted operation accesses memory any more. Operations that have not begun may be dropped. Takes
  // as long as the work that is under way, which never waits for a host or a peer.
  virtual void Drain() = 0;

 private:
  virtual Status SubmitAsync(const SliceOp& op, Ticket* ticket) = 0;
  virtual Status PollAsync(Ticket ticket, bool* done) = 0;

  const MemoryKind kind_;
  int unfinished_ = 0;
};

// Kind of the memory behind a queue, which is null for host memory.
inline MemoryKind KindOf(const DomainQueue* queue) { return queue == nullptr ? MemoryKind::kHost : queue->kind(); }

// One operation that is under way, or none.
class Submission {
 public:
  // Starts `op` on `queue`; null: does it now. Nothing may be pending. Errors: as DomainQueue::Submit, and kAborted
  // when a reduction function has failed: what should be the result must not be sent on.
  Status Submit(DomainQueue* queue, const SliceOp& op) {
    user_ = op.custom.user;
    if (queue == nullptr) {
      RunOnHost(op);
      return CheckUser();
    }
    queue_ = queue;
    return queue->Submit(op, &ticket_);
  }

  bool pending() const { return ticket_ != DomainQueue::kCompleted; }

  // Looks whether the operation has finished; then nothing is pending any more. Errors: as Submit.
  Status Poll() {
    bool done = false;
    ANNULUS_RETURN_IF_ERROR(queue_->Poll(ticket_, &done));
    if (!done) return Status();
    ticket_ = DomainQueue::kCompleted;
    return CheckUser();
  }

 private:
  // The engine says which rank's it was.
  Status CheckUser() const {
    const bool ok = user_ == nullptr || user_->failure.load(std::memory_order_relaxed) == 0;
    return ok ? Status() : Status(Code::kAborted, "the reduction function failed");
  }

  const UserReduction* user_ = nullptr;  // The reduction of the latest operation, if it is the user's.
  DomainQueue* queue_ = nullptr;
  DomainQueue::Ticket ticket_ = DomainQueue::kCompleted;
};

}  // namespace annulus
