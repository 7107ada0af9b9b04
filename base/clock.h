// Clock: monotonic time in nanoseconds, and deadlines on it.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace annulus {

using Nanoseconds = int64_t;

constexpr Nanoseconds kMicrosecond = 1000;
constexpr Nanoseconds kMillisecond = 1000 * kMicrosecond;
constexpr Nanoseconds kSecond = 1000 * kMillisecond;

// A point on the monotonic clock after which a wait gives up.
using Deadline = Nanoseconds;
constexpr Deadline kNoDeadline = std::numeric_limits<Nanoseconds>::max();

inline Nanoseconds Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

inline Deadline DeadlineAfter(Nanoseconds duration) {
  const Nanoseconds now = Now();
  return duration > kNoDeadline - now ? kNoDeadline : now + duration;
}

}  // namespace annulus
