// Measurement: the time of one collective call, as the slowest rank sees it.
//
// A sample is the time of a few calls in a row divided by their number (calls_per_sample; 1 unless a call is so short
// that reading the clock would show), and the largest of the ranks' times. Samples come in batches that all ranks start
// together, after one untimed call; the ranks compare their times between batches, outside the timed part.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "bench/perf/perf_group.h"

namespace annulus::perf {

struct Effort {
  int warmup = 5;      // Untimed passes, at least 1.
  int iterations = 0;  // Timed passes; 0 = as many as fit `seconds`, at least kMinSamples.
  double seconds = 0.25;
};

// Fewer would make a median of nothing; more than kMaxSamples only takes time and memory.
inline constexpr int kMinSamples = 5;
inline constexpr int kMaxSamples = 2000;

struct Timing {
  double median_us = 0;
  double min_us = 0;
  double p99_us = 0;
  int samples = 0;
  int calls_per_sample = 1;
};

// One pass of what is measured.
using Pass = std::function<Status()>;

// Measures `pass`. With iterations 0 it ends after about `seconds` (four times that when the first passes misled the
// estimate), or after kMinSamples passes if those take longer.
Status Measure(Group& group, const Effort& effort, const Pass& pass, Timing* timing);

// The summary of samples in seconds; `samples` is not empty. p99 is the smallest sample that 99 % do not exceed.
Timing Summarise(std::vector<double> samples, int calls_per_sample);

}  // namespace annulus::perf
