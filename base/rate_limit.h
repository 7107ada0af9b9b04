// RateLimit: lets one event pass in each interval, for what may come often but is worth telling only now and then.
//
// Threads: one.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace annulus {

class RateLimit {
 public:
  explicit RateLimit(Nanoseconds interval) : interval_(interval) {}

  // Whether the event, at `now`, may pass. If so, *missed becomes the number of those since the last that did not.
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
