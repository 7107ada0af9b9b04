// How many passes, in which batches, and the ranks' common view of their times.
//
// Threads: see perf_measure.h.
#include "bench/perf/perf_measure.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace annulus::perf {
namespace {

// Reading the clock twice costs about 50 ns: below 1 % of a sample this long.
constexpr double kSampleSeconds = 10e-6;
constexpr int kMaxCallsPerSample = 1000;
constexpr int kBatchSamples = 100;
constexpr double kOverrun = 4;  // Ends a measurement whose estimate was too low.

Status TimedPasses(const Pass& pass, int passes, double* seconds) {
  const Nanoseconds start = Now();
  for (int i = 0; i < passes; ++i) ANNULUS_RETURN_IF_ERROR(pass());
  *seconds = static_cast<double>(Now() - start) * 1e-9;
  return Status();
}

// The quickest warm-up pass of the slowest rank: the first ones fault pages and open windows.
Status Estimate(Group& group, const Effort& effort, const Pass& pass, double* seconds) {
  *seconds = HUGE_VAL;
  for (int i = 0; i < std::max(1, effort.warmup); ++i) {
    double once = 0;
    ANNULUS_RETURN_IF_ERROR(TimedPasses(pass, 1, &once));
    *seconds = std::min(*seconds, once);
  }
  return group.Max({seconds, 1});
}

struct Plan {
  int samples;
  int calls_per_sample;
};

Plan MakePlan(const Effort& effort, double estimate) {
  const double call = std::max(estimate, 1e-9);
  int calls = static_cast<int>(std::clamp(std::ceil(kSampleSeconds / call), 1.0, double{kMaxCallsPerSample}));
  if (effort.iterations > 0) {
    // No fewer than were asked for, in samples enough to tell their median from their extremes.
    calls = std::min(calls, std::max(1, effort.iterations / kMinSamples));
    return {(effort.iterations - 1) / calls + 1, calls};
  }
  const double fit = effort.seconds / (call * calls);
  return {static_cast<int>(std::clamp(fit, double{kMinSamples}, double{kMaxSamples})), calls};
}

}  // namespace

Timing Summarise(std::vector<double> samples, int calls_per_sample) {
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  const double median = (samples[(count - 1) / 2] + samples[count / 2]) / 2;
  const size_t p99 = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(count))) - 1;
  return {median * 1e6, samples.front() * 1e6, samples[p99] * 1e6, static_cast<int>(count), calls_per_sample};
}

Status Measure(Group& group, const Effort& effort, const Pass& pass, Timing* timing) {
  double estimate = 0;
  ANNULUS_RETURN_IF_ERROR(Estimate(group, effort, pass, &estimate));
  const Plan plan = MakePlan(effort, estimate);
  std::vector<double> samples;
  samples.reserve(static_cast<size_t>(plan.samples));
  double elapsed = 0;
  while (static_cast<int>(samples.size()) < plan.samples) {
    const bool enough = static_cast<int>(samples.size()) >= kMinSamples;
    if (effort.iterations == 0 && enough && elapsed > kOverrun * effort.seconds) break;
    // A short first batch: it shows how good the estimate was.
    const size_t batch_samples = samples.empty() ? kMinSamples : kBatchSamples;
    std::vector<double> batch(std::min(batch_samples, static_cast<size_t>(plan.samples) - samples.size()));
    ANNULUS_RETURN_IF_ERROR(group.Barrier());
    ANNULUS_RETURN_IF_ERROR(pass());
    for (double& sample : batch) ANNULUS_RETURN_IF_ERROR(TimedPasses(pass, plan.calls_per_sample, &sample));
    // All ranks go on from the same numbers, so they agree on when to stop.
    ANNULUS_RETURN_IF_ERROR(group.Max(batch));
    for (double sample : batch) {
      elapsed += sample;
      samples.push_back(sample / plan.calls_per_sample);
    }
  }
  *timing = Summarise(std::move(samples), plan.calls_per_sample);
  return Status();
}

}  // namespace annulus::perf
