// RateLimit: lets one event pass in each interval, for events that may be frequent but are worth reporting only now and
// then.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace annulus {

class RateLimit {
 public:
  explicit RateLimit(Nanoseconds interval) : interval_(interval) {}

  // Whether the event at time `now` may pass. If so, *missed is the number of events held back since the last one that
  // passed.
  bool Pass(Nanoseconds now, uint64_t* missed) {
    if (now < next_) {
      ++missed_;
      return false;
    }
    next_ = now + interval_;
    *missed = missed_;
    missed_ = 0;
    return true;
  }

 private:
  const Nanoseconds interval_;
  Nanoseconds next_ = 0;
  uint64_t missed_ = 0;
};

}  // namespace annulus
