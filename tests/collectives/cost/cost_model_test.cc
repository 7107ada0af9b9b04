// The cost model: limits that its formulas must have, and the engine on simulated links, whose time it must tell.
#include "collectives/cost/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "collectives/choice/plan.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr RingSlices kSlices = {256 * 1024, 4};
constexpr double kMiB = 1 << 20;

// 100 Gbit/s, 10 us.
LinkCosts Fast() {
  return {.latency_s = 10e-6, .byte_s = 8e-11, .message_s = 1e-6, .reduce_byte_s = 2e-11, .move_byte_s = 2e-11};
}

TEST(CostModelTest, OneRankTakesNoTime) {
  EXPECT_EQ(RingSeconds(1, kMiB, kSlices, Fast()), 0);
  EXPECT_EQ(OneHopSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(LogGatherSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(LogExchangeSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(RecursiveDoublingSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(HalvingDoublingSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(TreeSeconds(1, kMiB, Fast()), 0);
  EXPECT_EQ(TwoLevelSeconds({1, 1, 1}, kMiB, kSlices, Fast(), Fast()), 0);
}

TEST(CostModelTest, ALongRingIsBoundByItsLinks) {
  for (const int n : {2, 8, 64, 1000}) {
    const double bytes = 8192 * kMiB;
    const double bound = 2.0 * (n - 1) / n * bytes * Fast().byte_s;
    const double seconds = RingSeconds(n, bytes, kSlices, Fast());
    EXPECT_GT(seconds, bound) << n;
    EXPECT_LT(seconds, 1.05 * bound) << n;
  }
}

TEST(CostModelTest, AShortRingIsBoundByItsHops) {
  for (const int n : {2, 8, 64, 1000}) {
    const double hop = Fast().latency_s + Fast().message_s;
    EXPECT_NEAR(RingSeconds(n, 4, kSlices, Fast()) / (2.0 * (n - 1) * hop), 1, 0.01) << n;
  }
}

TEST(CostModelTest, MoreBytesOrRanksNeverTakeLess) {
  for (double bytes = 4; bytes < 1e9; bytes *= 3) {
    for (const int n : {2, 3, 8, 31, 64, 1000}) {
      EXPECT_LE(RingSeconds(n, bytes, kSlices, Fast()), RingSeconds(n, 3 * bytes, kSlices, Fast()));
      EXPECT_LE(RingSeconds(n, bytes, kSlices, Fast()), RingSeconds(2 * n, bytes, kSlices, Fast()));
      EXPECT_LE(TreeSeconds(n, bytes, Fast()), TreeSeconds(n, 3 * bytes, Fast()));
      EXPECT_LE(LogGatherSeconds(n, bytes, Fast()), LogGatherSeconds(2 * n, bytes, Fast()));
      EXPECT_LE(LogExchangeSeconds(n, bytes, Fast()), LogExchangeSeconds(2 * n, bytes, Fast()));
    }
  }
}

TEST(CostModelTest, LogStepsWinWithFewBytesAndRingsWithMany) {
  EXPECT_LT(LogGatherSeconds(64, 1024, Fast()), 0.1 * RingSeconds(64, 1024, kSlices, Fast()));
  EXPECT_LT(LogExchangeSeconds(64, 1024, Fast()), 0.15 * RingSeconds(64, 1024, kSlices, Fast()));
  EXPECT_LT(LogExchangeSeconds(64, 65536, Fast()), LogGatherSeconds(64, 65536, Fast()));
  EXPECT_LT(LogExchangeSeconds(64, 65536, Fast()), RingSeconds(64, 65536, kSlices, Fast()));
  EXPECT_LT(TreeSeconds(1000, 1024, Fast()), 0.05 * RingSeconds(1000, 1024, kSlices, Fast()));
  EXPECT_GT(TreeSeconds(64, 512 * kMiB, Fast()), RingSeconds(64, 512 * kMiB, kSlices, Fast()));
  EXPECT_GT(LogExchangeSeconds(64, 512 * kMiB, Fast()), RingSeconds(64, 512 * kMiB, kSlices, Fast()));
}

TEST(CostModelTest, TwoLevelsOfOneAreTheRing) {
  const double ring = RingSeconds(64, kMiB, kSlices, Fast());
  EXPECT_DOUBLE_EQ(TwoLevelSeconds({64, 1, 1}, kMiB, kSlices, Fast(), Fast()), ring);
  const int size = BestGroupSize(64, 1024, kSlices, Fast());
  EXPECT_EQ(size, 8);  // 2 * 7 hops inside, 2 * 7 outside.
  EXPECT_LT(TwoLevelSeconds({64 / size, size, 1}, 1024, kSlices, Fast(), Fast()),
            0.3 * RingSeconds(64, 1024, kSlices, Fast()));
}

TEST(CostModelTest, SharedCoresSlowTheRingDownOnceTheyAreTheLimit) {
  LinkCosts costs = Fast();
  const double alone = RingSeconds(64, kMiB, kSlices, costs);
  costs.ranks_per_core = 32;
  EXPECT_GT(RingSeconds(64, kMiB, kSlices, costs), 2 * alone);
}

struct SimCase {
  int nranks;
  size_t bytes;
  size_t slice_bytes;  // 0: chosen.
  size_t small_bytes;
  Nanoseconds latency;
  int64_t bytes_per_us;
};

// Virtual seconds until the last rank has finished.
double SimulatedSeconds(const SimCase& one, const PlanSettings& plan) {
  SimJobOptions options;
  options.plan = plan;
  options.world.nranks = one.nranks;
  options.world.kind = SimKind::kStream;
  options.world.slots = plan.slots;
  options.world.slot_bytes = SlotBytes(plan);
  options.world.min_latency = options.world.max_latency = one.latency;
  options.world.bytes_per_us = one.bytes_per_us;
  options.world.window_bytes = 64 << 20;  // No sender waits for its receiver.
  options.call = Call{1, CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 0, one.bytes / 4};
  options.timeout = 1000 * kSecond;
  SimJob job(options);
  EXPECT_TRUE(job.Run()) << "hang";
  Nanoseconds last = 0;
  for (int rank = 0; rank < one.nranks; ++rank) last = std::max(last, job.ended_at(rank));
  return static_cast<double>(last) / kSecond;
}

double ModelledSeconds(const SimCase& one, const PlanSettings& plan) {
  const Call call{1, CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 0, one.bytes / 4};
  LinkCosts costs;  // The simulated core takes no time.
  costs.latency_s = static_cast<double>(one.latency) / kSecond;
  costs.byte_s = 1e-6 / static_cast<double>(one.bytes_per_us);
  const Topology topology(one.nranks);
  const ScheduleParams params = MakePlan({call, 4, 0, one.nranks, nullptr, nullptr}, plan, topology);
  // A simulated rank has a link of its own to each other one; the model's ranks have one link.
  if (params.algorithm == Algorithm::kOneHop) costs.byte_s /= one.nranks - 1;
  return ModelledSeconds({plan, topology}, EqualCosts(costs), params.algorithm, one.bytes);
}

void ExpectClose(const SimCase& one, int mesh_ranks, double bound) {
  SCOPED_TRACE(testing::Message() << one.nranks << " ranks, " << one.bytes << " bytes, " << one.latency << " ns");
  PlanSettings plan;
  plan.slice_bytes = one.slice_bytes;
  plan.small_bytes = one.small_bytes;
  plan.mesh_ranks = mesh_ranks;
  EXPECT_NEAR(ModelledSeconds(one, plan) / SimulatedSeconds(one, plan), 1, bound);
}

TEST(CostModelTest, PricesAPlanOfTwoLevelsAsThat) {
  const PlanSettings settings;
  const Topology topology(4, {0, 0, 1, 1});
  const LinkCosts costs = {.latency_s = 1e-6, .byte_s = 1e-9};
  const Call call{1, CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 0, 1 << 20};
  const ScheduleParams plan = MakePlan({call, 4, 0, 4, nullptr, nullptr}, settings, topology);
  ASSERT_EQ(plan.algorithm, Algorithm::kTwoLevel);
  const RingSlices slices = {plan.slice_bytes, plan.round_slices};
  // The two ranks of a host share its link.
  EXPECT_EQ(ModelledSeconds({settings, topology}, EqualCosts(costs), plan.algorithm, 4 << 20),
            TwoLevelSeconds({2, 2, 2}, 4 << 20, slices, costs, costs));
}

// Pieces of slices go on as they come (cut-through), which the model leaves out: hence the bound.
TEST(CostModelTest, TellsTheTimeOfTheEnginesRingOnSimulatedLinks) {
  for (const int n : {2, 3, 5, 8, 16}) {
    if (kSanitized && n > 5) continue;
    for (const size_t bytes : {size_t{1} << 10, size_t{1} << 14, size_t{100'000}}) {
      for (const Nanoseconds latency : {2 * kMicrosecond, 50 * kMicrosecond}) {
        // With two or three ranks rounds overlap, which shows where latency is the limit.
        if (n <= 3 && bytes > 16 << 10 && latency > 2 * kMicrosecond) continue;
        ExpectClose({n, bytes, 4 << 10, 0, latency, 1000}, 0, 0.1);
      }
    }
  }
}

TEST(CostModelTest, TellsTheTimeOfTheEnginesTreeOnSimulatedLinks) {
  for (const int n : {17, 20, 64}) {
    for (const size_t bytes : {4, 512}) ExpectClose({n, bytes, 4 << 10, 16 << 10, 50 * kMicrosecond, 1000}, 0, 0.1);
  }
}

TEST(CostModelTest, ATreeTakesFewestMessagesWhichCountWhereCoresAreShared) {
  EXPECT_EQ(SmallTreeSeconds(1, kMiB, Fast()), 0);
  LinkCosts costs = Fast();
  costs.message_s = 38e-6;
  costs.ranks_per_core = 32;
  EXPECT_LT(SmallTreeSeconds(64, 8, costs), 3e-3);
  EXPECT_GT(LogExchangeSeconds(64, 8, costs), 10e-3);
}

TEST(CostModelTest, TellsTheTimeOfTheEnginesOneHopExchangeOnSimulatedLinks) {
  for (const int n : {2, 3, 5, 8}) {
    for (const size_t bytes : {size_t{1} << 10, size_t{1} << 14}) {
      for (const Nanoseconds latency : {2 * kMicrosecond, 50 * kMicrosecond}) {
        ExpectClose({n, bytes, 0, 16 << 10, latency, 1000}, kMaxOneHopRanks, 0.1);
      }
    }
  }
}

}  // namespace
}  // namespace annulus
