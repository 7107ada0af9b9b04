// Driver: takes one collective at a time from its first slice to its last, or to the verdict that ends the
// communicator.
//
// Threads: Run by one thread at a time; Interrupt by any.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "collectives/control.h"
#include "collectives/engine.h"
#include "collectives/waiter.h"
#include "transport/reactor.h"

namespace annulus {

class Driver {
 public:
  // All outlive the driver. `control` is null when there is one rank only.
  Driver(Engine* engine, Reactor* reactor, Control* control) : engine_(engine), reactor_(reactor), control_(control) {}

  // Runs `call` up to `deadline`. On failure fills *verdict, which is the same on every rank, and returns false; the
  // buffers stay lent until the links are closed.
  bool Run(const Call& call, const Buffers& buffers, Device* device, Deadline deadline, const WaitPolicy& policy,
           Verdict* verdict);

  // Makes the current and all later Runs fail with kAborted, on this rank alone.
  void Interrupt();

 private:
  Status RunEngine(Deadline deadline, const WaitPolicy& policy);
  bool HasVerdict() const { return control_ != nullptr && control_->has_verdict(); }
  bool Stopped() const { return interrupted_.load(std::memory_order_relaxed) || HasVerdict(); }
  void Sleep(Deadline deadline);
  Verdict Settle(const Status& failure, const Call& call);

  Engine* const engine_;
  Reactor* const reactor_;
  Control* const control_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace annulus
