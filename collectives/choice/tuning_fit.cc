#include "collectives/choice/tuning_fit.h"

#include <cmath>

namespace annulus {
namespace {

constexpr size_t kFewBytes = 8;
constexpr size_t kManyBytes = 64 * 1024;  // The most that ANNULUS_SMALL_BYTES may be.
constexpr size_t kLargeBytes = 1 << 20;

// Of the logarithm of what a factor may be: to 1e-5 of it.
constexpr int kHalvings = 20;
// Where few bytes are many already, as of two levels, each of the two factors needs the other one.
constexpr int kMostRounds = 24;
constexpr double kCloseEnough = 1e-3;

// The factor for which the model tells that time, when `factors` takes the factor and gives all. Its times grow with
// each of them.
template <class Factors>
double Solve(int nranks, const PlanSettings& settings, Algorithm algorithm, const Timing& timing, Factors factors) {
  double low = kLeastFactor;
  double high = kMostFactor;
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double middle = std::sqrt(low * high);
    const double modelled = ModelledSeconds(nranks, settings, factors(middle), algorithm, timing.bytes);
    (modelled < timing.seconds ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

// A factor at its bound is no cost of a link, but others' use of the cores meanwhile: nominal costs say more.
bool IsSound(double factor) {
  constexpr double kMargin = 1.01;
  return factor > kLeastFactor * kMargin && factor < kMostFactor / kMargin;
}

}  // namespace

TimedSizes SizesToTime(int nranks, const PlanSettings& settings, Algorithm algorithm) {
  const auto can = [&](size_t bytes) { return ModelledSeconds(nranks, settings, {}, algorithm, bytes) > 0; };
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

AlgorithmFactors FitFactors(int nranks, const PlanSettings& settings, Algorithm algorithm, const Timing& few,
                            const Timing& many, const Timing& large) {
  const auto solve = [&](const Timing& timing, auto factors) {
    return Solve(nranks, settings, algorithm, timing, factors);
  };
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
  // One factor for all that large calls cost: then they are as fast as measured even where one of the others, of calls
  // that others on this machine disturb most, has come to its bound.
  const Timing& most = large.bytes > 0 ? large : many.bytes > 0 ? many : few;
  fitted.large = solve(most, [](double factor) { return CostFactors{factor, factor}; });
  if (!IsSound(fitted.message) || !IsSound(fitted.byte)) fitted.message = fitted.byte = 1;
  if (!IsSound(fitted.large)) fitted.large = 1;
  return fitted;
}

}  // namespace annulus
