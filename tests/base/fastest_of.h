// Times without luck: a machine may stop a test for longer than the time that it looks for, but not each time.
//
// Threads: any.
#pragma once

#include <algorithm>
#include <limits>

#include "base/clock.h"

namespace annulus {

// The shortest of the times that `attempt` returns, in up to `tries` calls; no more calls once one is below `limit`.
template <typename Attempt>
Nanoseconds FastestOf(int tries, Nanoseconds limit, Attempt attempt) {
  Nanoseconds fastest = std::numeric_limits<Nanoseconds>::max();
  for (int i = 0; i < tries && fastest >= limit; ++i) fastest = std::min(fastest, attempt());
  return fastest;
}

}  // namespace annulus
