#include "collectives/choice/tuning_fit.h"

#include <cmath>

namespace annulus {
namespace {

constexpr size_t kFewBytes = 8;
constexpr size_t kManyBytes = 64 * 1024;  // The most that ANNULUS_SMALL_BYTES may be.
constexpr size_t kLargeBytes = 1 << 20;

// Bisections of the logarithm of the factor's range: enough for a relative precision of 1e-5.
constexpr int kHalvings = 20;
// Rounds of fitting. Where the smallest size is already large, as with two levels, each of the two factors depends on
// the other.
constexpr int kMostRounds = 24;
constexpr double kCloseEnough = 1e-3;

// Returns the factor with which the model gives the measured time. `factors` turns one factor into a full set. The
// modelled time grows with the factor.
template <class Factors>
double Solve(const AlgorithmJob& job, Algorithm algorithm, const Timing& timing, Factors factors) {
  double low = kLeastFactor;
  double high = kMostFactor;
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double middle = std::sqrt(low * high);
    const double modelled = ModelledSeconds(job, factors(middle), algorithm, timing.bytes);
    (modelled < timing.seconds ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

// A factor at its bound does not describe a link: other processes used the cores meanwhile. Nominal costs are a better
// estimate.
bool IsSound(double factor) {
  constexpr double kMargin = 1.01;
  return factor > kLeastFactor * kMargin && factor < kMostFactor / kMargin;
}

}  // namespace

TimedSizes SizesToTime(const AlgorithmJob& job, Algorithm algorithm) {
  const auto can = [&](size_t bytes) { return ModelledSeconds(job, CostFactors(), algorithm, bytes) > 0; };
  TimedSizes sizes;
  size_t bytes = kFewBytes;
  while (bytes <= kManyBytes && !can(bytes)) bytes *= 2;
  if (bytes > kManyBytes) return sizes;
  sizes.few = bytes;
  while (bytes < kManyBytes && can(2 * bytes)) bytes *= 2;
  if (bytes > sizes.few) sizes.many = bytes;
  if (can(kLargeBytes)) sizes.large = kLargeBytes;
  return sizes;
}

double ExpectedSeconds(const Timing& other, size_t bytes) {
  return other.seconds * static_cast<double>(bytes) / static_cast<double>(other.bytes);
}

AlgorithmFactors FitFactors(const AlgorithmJob& job, Algorithm algorithm, const Timing& few, const Timing& many,
                            const Timing& large) {
  const auto solve = [&](const Timing& timing, auto factors) { return Solve(job, algorithm, timing, factors); };
  AlgorithmFactors fitted;
  fitted.is_measured = 1;
  for (int round = 0; round < kMostRounds; ++round) {
    const AlgorithmFactors before = fitted;
    fitted.message = solve(few, [&](double factor) { return CostFactors{factor, fitted.byte}; });
    if (many.bytes == 0) break;
    fitted.byte = solve(many, [&](double factor) { return CostFactors{fitted.message, factor}; });
    const double moved =
        std::abs(std::log(fitted.message / before.message)) + std::abs(std::log(fitted.byte / before.byte));
    if (moved < kCloseEnough) break;
  }
  // Large calls have one factor for all their costs. So they are as fast as measured even if one of the other factors
  // has reached its bound; those belong to calls that other processes on this machine disturb most.
  const Timing& most = large.bytes > 0 ? large : many.bytes > 0 ? many : few;
  fitted.large = solve(most, [](double factor) { return CostFactors{factor, factor}; });
  if (!IsSound(fitted.message) || !IsSound(fitted.byte)) fitted.message = fitted.byte = 1;
  if (!IsSound(fitted.large)) fitted.large = 1;
  return fitted;
}

}  // namespace annulus
