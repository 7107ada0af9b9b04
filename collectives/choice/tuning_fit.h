// TuningFit: the message sizes at which an algorithm is timed, and the factors of the cost model that fit these times.
// Pure.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>

#include "collectives/choice/algorithm_choice.h"

namespace annulus {

// Sizes of the allreduces with which an algorithm is timed, in bytes. 0: it supports no such size.
struct TimedSizes {
  size_t few = 0;    // Smallest supported size, at least 8 B. 0: the algorithm is not timed at all.
  size_t many = 0;   // Largest supported size up to 64 KiB, if larger than `few`.
  size_t large = 0;  // 1 MiB.
};
inline constexpr size_t kLargestTimedBytes = 4 << 20;  // In place of 1 MiB where that takes little time.

TimedSizes SizesToTime(const AlgorithmJob& job, Algorithm algorithm);

struct Timing {
  size_t bytes = 0;  // 0: not timed.
  double seconds = 0;
};

// Expected time of an allreduce of `bytes`, scaled from `other` as if each byte took the same time and nothing else
// did.
double ExpectedSeconds(const Timing& other, size_t bytes);

// Fits the factors of `algorithm` to its timings. `few` is required; `many` and `large` may be missing.
AlgorithmFactors FitFactors(const AlgorithmJob& job, Algorithm algorithm, const Timing& few, const Timing& many,
                            const Timing& large);

}  // namespace annulus
