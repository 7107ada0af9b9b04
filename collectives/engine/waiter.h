// Waiter: how a thread that drives an engine waits. It spins for a while, then yields to others, then sleeps.
//
// Sleeping costs 20-30 us on a virtual machine, so a rank with a core of its own spins first. With more ranks than
// cores, spinning steals time from the very rank that is waited for, so the waiter yields at once; a sleeping rank
// holds no core at all. Where waits turn out long, as behind a slow network, polling first is useless. With many ranks
// on few cores (containers that do not know of each other) it also takes the cores from ranks that have work. So each
// long wait halves the polling of the next one, and each short wait doubles it.
//
// Small messages through shared memory take less than half a microsecond; reading the clock once would take a twentieth
// of that. So the waiter reads it only every 16th poll and learns how long a poll takes. A wait that ended before the
// first reading is measured by the number of its polls.
//
// Threads: one at a time.
#pragma once

#include "base/clock.h"

namespace annulus {

struct WaitPolicy {
  Nanoseconds spin = 50 * kMicrosecond;  // Time of busy polling since something last moved.
  int yields = 100;                      // Number of polls with sched_yield after that, before sleeping.
};

// Usual duration of something short, learnt from samples.
class UsualTime {
 public:
  // Lower samples count at once; higher ones may include time in which others had the core.
  void Learn(Nanoseconds sample) { value_ = value_ == 0 || sample < value_ ? sample : value_ + (sample - value_) / 16; }
  Nanoseconds value() const { return value_; }

 private:
  Nanoseconds value_ = 0;
};

class Waiter {
 public:
  enum class Next { kPollAgain, kSleep };

  // Begins a new piece of work under `policy`; what was learnt from waits and polls is kept.
  void Begin(const WaitPolicy& policy) {
    policy_ = policy;
    has_looked_ = false;
    Reset();
  }

  // Starts over after something moved.
  void Reset() {
    idle_polls_ = 0;
    yields_ = 0;
  }

  // Called when nothing moved: pauses or yields as due, and returns what to do next. The clock is read every few polls
  // only; now() returns its last value.
  Next Idle();

  // Called when a sleep has ended, at time `now`.
  void Slept(Nanoseconds now);

  // Polls since something moved, or since it was due to sleep.
  int idle_polls() const { return idle_polls_; }
  // Duration of these polls, as far as it is known without reading the clock.
  Nanoseconds IdleTime() const { return idle_polls_ * poll_time_.value(); }

  // Whether the clock was read since Begin.
  bool has_looked() const { return has_looked_; }
  // Whether the latest Idle read the clock: the moment to check a deadline.
  bool looked() const { return looked_; }
  // Time of the last reading.
  Nanoseconds now() const { return now_; }
  // Start of these idle polls; known once the clock was read.
  Nanoseconds idle_since() const { return idle_since_; }

 private:
  void Look();
  void Yield();

  WaitPolicy policy_;
  int halvings_ = 0;  // How often the policy's spin and yields are halved.
  int idle_polls_ = 0;
  int yields_ = 0;
  int crowded_ = 0;  // Yields since the last sleep in which another thread used the core.
  Nanoseconds idle_since_ = 0;
  Nanoseconds now_ = 0;
  UsualTime poll_time_;
  bool looked_ = false;
  bool has_looked_ = false;
};

// Returns the policy for `local_size` ranks that share `cores` cores. `spin_us` < 0: chosen.
WaitPolicy ChooseWaitPolicy(int local_size, int cores, int64_t spin_us);

}  // namespace annulus
