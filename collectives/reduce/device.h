// Device: the place of user memory, and the only way in which the engine accesses it and the slots.
//
// Submitted work completes later. Its order is restricted only by its own Submit/Done dependencies: the engine never
// relies on the order of two operations unless it saw the first one Done. For host memory both calls are inline, and
// the work is complete when Submit returns.
//
// Threads: one at a time, the one that drives the communicator.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collectives/reduce/reducer.h"

namespace annulus {

class Device {
 public:
  using Ticket = uint64_t;
  static constexpr Ticket kCompleted = 0;

  virtual ~Device() = default;

  // Whether the CPU, and so a transport, may access user memory directly.
  bool host_accessible() const { return queue_ == nullptr; }

  // Starts `op`. Its buffers are borrowed until Done(*ticket). Errors: would_block when the queue is full; otherwise
  // permanent.
  Status Submit(const SliceOp& op, Ticket* ticket) {
    if (queue_ == nullptr) {
      RunOnHost(op);
      *ticket = kCompleted;
      return Status();
    }
    return queue_->SubmitAsync(op, ticket);
  }

  // Sets *done to whether the work of `ticket` has finished. Its results are then visible to the CPU, if the CPU can
  // access them.
  Status Poll(Ticket ticket, bool* done) {
    if (ticket == kCompleted) {
      *done = true;
      return Status();
    }
    return queue_->PollAsync(ticket, done);
  }

 protected:
  // Interface of a device with its own queue.
  class Queue {
   public:
    virtual ~Queue() = default;
    virtual Status SubmitAsync(const SliceOp& op, Ticket* ticket) = 0;
    virtual Status PollAsync(Ticket ticket, bool* done) = 0;
  };
  explicit Device(Queue* queue) : queue_(queue) {}

 private:
  Queue* const queue_;  // Null for host memory.
};

class HostDevice final : public Device {
 public:
  HostDevice() : Device(nullptr) {}
};

}  // namespace annulus
