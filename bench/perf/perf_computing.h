// Computing: arithmetic that takes a given time on one thread and touches no memory, in place of what an application
// does while its calls are under way.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "bench/perf/perf_group.h"

namespace annulus::perf {

class Computing {
 public:
  // No work.
  Computing() = default;

  // Finds how much work takes `seconds` while all ranks compute. Collective.
  static Status Lasting(double seconds, Group& group, Computing* computing);

  void Run() const;

  // What it takes on the slowest rank when nothing else is under way; median.
  double seconds() const { return seconds_; }

 private:
  uint64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace annulus::perf
