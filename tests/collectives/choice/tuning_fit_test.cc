// The fit of measured times: what is timed, that the model then tells these times, and that two levels and the ring are
// chosen by them.
#include "collectives/choice/tuning_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr size_t kKiB = 1024;

// 2 hosts of 2 ranks.
Topology Grid() {
  Topology topology(4, {0, 1, 0, 1});
  topology.by_system_calls = true;
  topology.near = &kShmTransport;
  topology.far = &kTcpTransport;
  return topology;
}

const PlanSettings kDefaults;
const Topology kGrid = Grid();
const AlgorithmJob kGridJob{kDefaults, kGrid};

// The factors of times that an algorithm would take with `factors`.
AlgorithmFactors FitModelled(Algorithm algorithm, const AlgorithmFactors& factors) {
  const TimedSizes sizes = SizesToTime(kGridJob, algorithm);
  const auto at = [&](size_t bytes) {
    return Timing{bytes, bytes == 0 ? 0 : ModelledSeconds(kGridJob, factors.For(bytes), algorithm, bytes)};
  };
  return FitFactors(kGridJob, algorithm, at(sizes.few), at(sizes.many), at(sizes.large));
}

TEST(SizesToTimeTest, AreThoseOfCallsThatCanBeDone) {
  const Topology one_host(4);
  const TimedSizes two_level = SizesToTime(kGridJob, Algorithm::kTwoLevel);
  EXPECT_EQ(two_level.few, 32 * kKiB);
  EXPECT_EQ(two_level.many, 64 * kKiB);
  EXPECT_EQ(two_level.large, 1024 * kKiB);
  EXPECT_EQ(SizesToTime({kDefaults, one_host}, Algorithm::kTwoLevel).few, 0u);
  const TimedSizes ring = SizesToTime(kGridJob, Algorithm::kRing);
  EXPECT_EQ(ring.few, 8u);
  EXPECT_EQ(ring.large, 1024 * kKiB);
  const TimedSizes one_hop = SizesToTime(kGridJob, Algorithm::kOneHop);
  EXPECT_EQ(one_hop.many, 16 * kKiB);
  EXPECT_EQ(one_hop.large, 0u);
  PlanSettings none_small;
  none_small.small_bytes = 0;
  EXPECT_EQ(SizesToTime({none_small, one_host}, Algorithm::kOneHop).few, 0u);
}

TEST(FitFactorsTest, MakeTheModelTellTheTimes) {
  for (const AlgorithmName& each : kAlgorithms) {
    const TimedSizes sizes = SizesToTime(kGridJob, each.algorithm);
    for (const AlgorithmFactors& factors : {AlgorithmFactors{1, 3, 0.2, 0.05}, AlgorithmFactors{1, 0.1, 5, 20}}) {
      if (sizes.few == 0) continue;
      const AlgorithmFactors fitted = FitModelled(each.algorithm, factors);
      EXPECT_EQ(fitted.is_measured, 1);
      for (const size_t bytes : {sizes.few, sizes.many, sizes.large}) {
        if (bytes == 0) continue;
        const double wanted = ModelledSeconds(kGridJob, factors.For(bytes), each.algorithm, bytes);
        const double got = ModelledSeconds(kGridJob, fitted.For(bytes), each.algorithm, bytes);
        EXPECT_NEAR(got / wanted, 1, 0.02) << each.name << " " << bytes;
      }
    }
  }
}

TEST(FitFactorsTest, StayWithinTheirBoundsWhateverTheTimes) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoLevel}) {
    const TimedSizes sizes = SizesToTime(kGridJob, algorithm);
    for (const double seconds : {0.0, 1e-12, 1e9}) {
      const Timing few{sizes.few, seconds};
      const AlgorithmFactors fitted = FitFactors(kGridJob, algorithm, few, {sizes.many, 1e-3}, {sizes.large, seconds});
      for (const double factor : {fitted.message, fitted.byte, fitted.large}) {
        EXPECT_GE(factor, kLeastFactor);
        EXPECT_LE(factor, kMostFactor);
      }
    }
  }
}

TEST(FitFactorsTest, LetTwoLevelsBeChosenWhereTheyAreMeasuredFaster) {
  for (const bool faster : {true, false}) {
    MeasuredFactors measured{};
    for (size_t place = 0; place < measured.size(); ++place) {
      const Algorithm algorithm = kAlgorithms[place].algorithm;
      if (SizesToTime(kGridJob, algorithm).few == 0) continue;
      // Slower at 64 KiB in any case: that says nothing of large calls.
      AlgorithmFactors factors{1, 2, 2, 1};
      if (algorithm == Algorithm::kTwoLevel) factors = {1, 20, 20, faster ? 1.0 : 20.0};
      measured[place] = FitModelled(algorithm, factors);
    }
    const AlgorithmChoice choice(kDefaults, kGrid, measured);
    EXPECT_NE(choice.At(CollectiveKind::kAllreduce, 64 * kKiB), Algorithm::kTwoLevel);
    for (const size_t bytes : {kKiB * kKiB, 64 * kKiB * kKiB}) {
      EXPECT_EQ(choice.At(CollectiveKind::kAllreduce, bytes), faster ? Algorithm::kTwoLevel : Algorithm::kRing);
    }
  }
}

}  // namespace
}  // namespace annulus
