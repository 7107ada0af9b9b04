// DrainTimer: how long annulus-run waits for its output to be written once no rank is left. Without an interrupt it
// waits for its readers as long as they take.
//
// Threads: one.
#pragma once

#include "base/clock.h"

namespace annulus {

class DrainTimer {
 public:
  // The user has interrupted the job: once no rank is left, wait for at most kDrainTime.
  void Hurry() { hurried_ = true; }
  // No rank is left. May be called again.
  void Begin() {
    if (hurried_ && deadline_ == kNoDeadline) deadline_ = DeadlineAfter(kDrainTime);
  }
  // Wait for once more as long: output is still on its way.
  void Restart() { deadline_ = DeadlineAfter(kDrainTime); }
  // Wait no longer.
  void Stop() { deadline_ = Now(); }

  Deadline deadline() const { return deadline_; }

 private:
  static constexpr Nanoseconds kDrainTime = 1 * kSecond;

  bool hurried_ = false;
  Deadline deadline_ = kNoDeadline;
};

}  // namespace annulus
