// TuningFit: at which sizes an algorithm is timed, and the factors of the cost model that these times give. Pure.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>

#include "collectives/choice/algorithm_choice.h"

namespace annulus {

// The sizes of allreduces at which an algorithm is timed; 0: it can do none like that.
struct TimedSizes {
  size_t few = 0;    // The least from 8 B on. 0: it is not timed at all.
  size_t many = 0;   // The most of up to 64 KiB, when that is more.
  size_t large = 0;  // 1 MiB.
};
inline constexpr size_t kLargestTimedBytes = 4 << 20;  // Instead of 1 MiB, where that takes little time.

TimedSizes SizesToTime(int nranks, const PlanSettings& settings, Algorithm algorithm);

struct Timing {
  size_t bytes = 0;  // 0: there is none.
  double seconds = 0;
};

// What an allreduce of so many bytes takes going by another one, where each byte takes time, and nothing else.
double ExpectedSeconds(const Timing& other, size_t bytes);

// `few` is there, of what the algorithm can do.
AlgorithmFactors FitFactors(int nranks, const PlanSettings& settings, Algorithm algorithm, const Timing& few,
                            const Timing& many, const Timing& large);

}  // namespace annulus
