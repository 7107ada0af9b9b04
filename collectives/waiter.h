// Waiter: how a thread that drives an engine waits: it spins for a while, then lets others run, then sleeps.
//
// Sleeping costs 20-30 us on a virtual machine, so a rank that has a core of its own spins
// first. With more ranks than cores spinning steals time from the very rank that is waited for, so it yields at once;
// and a sleeping rank holds no core at all. Where waits turn out long, as behind a slow network, polling first is in
// vain, and with many ranks on few cores (containers that know nothing of each other) it takes the cores from those who
// have work: so after each long wait the next one polls half as much, and after each short one twice as much.
//
// Threads: one at a time.
#pragma once

#include "base/clock.h"

namespace annulus {

struct WaitPolicy {
  Nanoseconds spin = 50 * kMicrosecond;  // Busy polling, from the last thing that moved.
  int yields = 100;                      // Then sched_yield between polls, this many times; then sleep.
};

class Waiter {
 public:
  enum class Next { kPollAgain, kSleep };

  // A wait under `policy` begins; what earlier ones taught stays.
  void Begin(const WaitPolicy& policy) {
    policy_ = policy;
    Reset();
  }

  // Something moved: start over.
  void Reset() {
    idle_polls_ = 0;
    yields_ = 0;
  }

  // Nothing moved: pauses or yields as due, and says what to do next. The clock is read every few polls only; its last
  // value is in now().
  Next Idle();

  // The sleep is over, at time `now`.
  void Slept(Nanoseconds now);

  // Time as of the last look at the clock, 0 before the first.
  Nanoseconds now() const { return now_; }
  // Whether the latest Idle looked at the clock: the moment to check a deadline.
  bool looked() const { return looked_; }

 private:
  WaitPolicy policy_;
  int halvings_ = 0;  // Of the policy's spin and yields.
  int idle_polls_ = 0;
  int yields_ = 0;
  Nanoseconds idle_since_ = 0;
  Nanoseconds now_ = 0;
  bool looked_ = false;
};

// The policy for ranks that share `cores` cores with `local_size` ranks in all. `spin_us` < 0: chosen.
WaitPolicy ChooseWaitPolicy(int local_size, int cores, int64_t spin_us);

}  // namespace annulus
