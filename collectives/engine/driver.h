// Driver: takes one collective at a time from its first slice to its last, or to the verdict that ends the
// communicator.
//
// Threads: Run and RunMessages by one thread at a time; Interrupt and Nudge by any.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/messages.h"
#include "collectives/engine/waiter.h"
#include "collectives/observe/monitor.h"
#include "transport/reactor.h"

namespace annulus {

class Driver {
 public:
  // How long a collective takes until the ranks are asked whether they agree on it; then after twice that time, and so
  // on.
  static constexpr Nanoseconds kFirstDoubt = kSecond;

  // All outlive the driver. `control` is null when there is one rank only.
  Driver(Engine* engine, Messages* messages, Reactor* reactor, Control* control, Monitor* monitor)
      : engine_(engine), messages_(messages), reactor_(reactor), control_(control), monitor_(monitor) {}

  // Runs `call` for up to `timeout`; messages move meanwhile. On failure fills *verdict, which is the same on every
  // rank, and returns false; the buffers stay lent until the links are closed.
  bool Run(const Call& call, const Buffers& buffers, Device* device, Nanoseconds timeout, const WaitPolicy& policy,
           Verdict* verdict);

  // Runs a call that the engine repeats (Engine::Repeats) as far as it goes at once, in a microsecond or two, or
  // some more for tens of kilobytes, and returns whether it is done; if not, Resume does the rest as Run does.
  // MayRepeat says whether nothing else wants the driver's attention. Without a look at the clock, but for every so
  // many calls, which stand for the others.
  bool MayRepeat() const { return !messages_->busy() && !Stopped() && monitor_->trace() == nullptr; }
  bool Repeat(const Call& call, const void* input, void* output);
  bool Resume(const Call& call, Nanoseconds timeout, const WaitPolicy& policy, Verdict* verdict);

  // Moves messages until `over`, which is asked again and again, and before a sleep. Fails as Run does.
  bool RunMessages(const std::function<bool()>& over, const WaitPolicy& policy, Verdict* verdict);

  // Makes the thread that drives look at what is new: a message posted, or what `over` depends on.
  void Nudge() { reactor_->Wake(); }

  // Makes the current and all later Runs fail with kAborted, on this rank alone.
  void Interrupt();

 private:
  bool Finish(const Call& call, Nanoseconds begin, Nanoseconds timeout, const WaitPolicy& policy, Verdict* verdict);
  Status RunEngine(Deadline deadline, const WaitPolicy& policy);
  Status DriveMessages(const std::function<bool()>& over, const WaitPolicy& policy);
  // Calls step(&moved, &over) and moves messages until over; waits in between.
  template <class Step>
  Status Loop(Step step, Deadline deadline, const WaitPolicy& policy);
  bool HasVerdict() const { return control_ != nullptr && control_->has_verdict(); }
  bool Stopped() const { return interrupted_.load(std::memory_order_relaxed) || HasVerdict(); }
  int AwaitedPeer() const { return engine_->done() ? messages_->AwaitedPeer() : engine_->AwaitedPeer(); }
  void EndWait() {
    if (monitor_->trace() != nullptr) [[unlikely]] {
      EndTracedWait();
    } else if (monitor_->waiting()) {
      monitor_->EndWait(Now());
    } else if (waiter_.idle_polls() > 0) {
      monitor_->AddWait(awaited_, waiter_.IdleTime());
    }
  }
  void EndTracedWait();
  void EndDrive(Nanoseconds begin);
  void Sleep(Deadline deadline);
  Status Overdue(Deadline deadline, Nanoseconds now);
  void Doubt(Nanoseconds now);
  Verdict Settle(const Status& failure, const Call& current);

  Engine* const engine_;
  Messages* const messages_;
  Reactor* const reactor_;
  Control* const control_;
  Monitor* const monitor_;
  Waiter waiter_;  // Of whoever drives.
  UsualTime short_drive_;
  uint32_t short_drives_ = 0;
  int moves_ = 0;                    // In this drive.
  Deadline doubt_at_ = kNoDeadline;  // In a collective.
  Nanoseconds doubt_after_ = 0;
  int awaited_ = -1;  // The peer that was awaited when nothing moved any more.
  std::atomic<bool> interrupted_{false};
};

}  // namespace annulus
