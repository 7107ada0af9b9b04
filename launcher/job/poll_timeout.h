// PollTimeout: poll's timeout for a deadline.
//
// Threads: a plain function.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace annulus {

// Milliseconds until `next`, rounded up; -1 when there is none. A far deadline may need several waits.
inline int PollTimeout(Deadline next) {
  if (next == kNoDeadline) return -1;
  constexpr Nanoseconds kLongest = 1000 * kSecond;  // Fits poll's int.
  const Nanoseconds left = std::clamp<Nanoseconds>(next - Now(), 0, kLongest);
  return static_cast<int>((left + kMillisecond - 1) / kMillisecond);
}

}  // namespace annulus
