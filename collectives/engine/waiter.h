// Waiter: how a thread that drives an engine waits: it spins for a while, then lets others run, then sleeps.
//
// Sleeping costs 20-30 us on a virtual machine, so a rank that has a core of its own spins
// first. With more ranks than cores spinning steals time from the very rank that is waited for, so it yields at once;
// and a sleeping rank holds no core at all. Where waits turn out long, as behind a slow network, polling first is in
// vain, and with many ranks on few cores (containers that know nothing of each other) it takes the cores from those who
// have work: so after each long wait the next one polls half as much, and after each short one twice as much.
//
// Small messages through shared memory take less than half a microsecond, of which one look at the clock would be a
// twentieth. So it looks at every 16th poll only, learns what a poll takes, and tells a wait that ended before the
// first look by the number of its polls.
//
// Threads: one at a time.
#pragma once

#include "base/clock.h"

namespace annulus {

struct WaitPolicy {
  Nanoseconds spin = 50 * kMicrosecond;  // Busy polling, from the last thing that moved.
  int yields = 100;                      // Then sched_yield between polls, this many times; then sleep.
};

// What something short usually takes, from samples.
class UsualTime {
 public:
  // Lower samples count at once; higher ones may hold time in which others had the core.
  void Learn(Nanoseconds sample) { value_ = value_ == 0 || sample < value_ ? sample : value_ + (sample - value_) / 16; }
  Nanoseconds value() const { return value_; }

 private:
  Nanoseconds value_ = 0;
};

class Waiter {
 public:
  enum class Next { kPollAgain, kSleep };

  // A new piece of work under `policy`; what waits and polls taught stays.
  void Begin(const WaitPolicy& policy) {
    policy_ = policy;
    has_looked_ = false;
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

  // Polls since something moved or it was to sleep.
  int idle_polls() const { return idle_polls_; }
  // How long they took, as far as that is known without looking at the clock.
  Nanoseconds IdleTime() const { return idle_polls_ * poll_time_.value(); }

  // Whether it has looked at the clock since Begin.
  bool has_looked() const { return has_looked_; }
  // Whether the latest Idle looked at the clock: the moment to check a deadline.
  bool looked() const { return looked_; }
  // Time as of the last look.
  Nanoseconds now() const { return now_; }
  // When these idle polls began; known once it looked.
  Nanoseconds idle_since() const { return idle_since_; }

 private:
  void Look();

  WaitPolicy policy_;
  int halvings_ = 0;  // Of the policy's spin and yields.
  int idle_polls_ = 0;
  int yields_ = 0;
  Nanoseconds idle_since_ = 0;
  Nanoseconds now_ = 0;
  UsualTime poll_time_;
  bool looked_ = false;
  bool has_looked_ = false;
};

// The policy for ranks that share `cores` cores with `local_size` ranks in all. `spin_us` < 0: chosen.
WaitPolicy ChooseWaitPolicy(int local_size, int cores, int64_t spin_us);

}  // namespace annulus
