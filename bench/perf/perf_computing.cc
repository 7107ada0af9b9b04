#include "bench/perf/perf_computing.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/clock.h"

namespace annulus::perf {
namespace {

// Takes a fraction of a millisecond, so that reading the clock does not count.
constexpr uint64_t kTrialSteps = 100'000;
constexpr int kTrials = 5;

// Each step waits for the one before it, so its time is that of a multiplication and an addition.
void Compute(uint64_t steps) {
  double value = 0.5;
  for (uint64_t i = 0; i < steps; ++i) value = value * 0.999 + 0.001;
  volatile double result = value;
  static_cast<void>(result);
}

double SecondsOf(uint64_t steps) {
  const Nanoseconds begin = Now();
  Compute(steps);
  return static_cast<double>(Now() - begin) * 1e-9;
}

double MedianOf(uint64_t steps) {
  std::array<double, kTrials> seconds{};
  for (double& each : seconds) each = SecondsOf(steps);
  std::ranges::sort(seconds);
  return seconds[kTrials / 2];
}

}  // namespace

Status Computing::Lasting(double seconds, Group& group, Computing* computing) {
  ANNULUS_RETURN_IF_ERROR(group.Barrier());
  MedianOf(kTrialSteps);  // The clock rate of a processor rises when it has work.
  const double trial = MedianOf(kTrialSteps);
  computing->steps_ = static_cast<uint64_t>(std::llround(seconds / trial * static_cast<double>(kTrialSteps)));
  ANNULUS_RETURN_IF_ERROR(group.Barrier());
  // Short work is measured as a part of more.
  const uint64_t steps = std::max(computing->steps_, kTrialSteps);
  computing->seconds_ = MedianOf(steps) * static_cast<double>(computing->steps_) / static_cast<double>(steps);
  return group.Max({&computing->seconds_, 1});
}

void Computing::Run() const {
  if (steps_ > 0) Compute(steps_);
}

}  // namespace annulus::perf
