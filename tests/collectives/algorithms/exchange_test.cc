// Allreduce and barrier in log steps, in a gather and through a tree, on simulated links: the oracle's bits for every
// number of ranks, and the links that they need.
#include "collectives/algorithms/exchange.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "collectives/algorithms/table.h"
#include "collectives/algorithms/tree/tree_exchange.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

SimJobOptions MakeOptions(Algorithm algorithm, uint64_t seed, int nranks) {
  std::mt19937_64 random(seed * 1009 + static_cast<uint64_t>(nranks));
  SimJobOptions options;
  options.world.seed = seed;
  options.world.nranks = nranks;
  options.world.kind = static_cast<SimKind>(random() % 3);
  options.plan.slots = 2 + static_cast<int>(random() % 4);
  options.plan.channels = 1 + static_cast<int>(random() % 2);
  options.plan.slice_bytes = algorithm == Algorithm::kLogGather ? 65536 : 1024;
  options.plan.small_bytes = 4096;
  options.plan.algorithm = algorithm;
  options.plan.mesh_ranks = 0;
  options.world.slots = options.plan.slots;
  options.world.slot_bytes = SlotBytes(options.plan);
  options.call.sequence = 1;
  options.call.kind = CollectiveKind::kAllreduce;
  const Reduction reduction = AnyReduction(&random);
  options.call.type = reduction.type;
  options.call.op = reduction.op;
  const size_t most = options.plan.small_bytes / TypeBytes(options.call.type);
  const size_t counts[] = {0, 1, static_cast<size_t>(nranks) - 1, static_cast<size_t>(nranks) + 1, most / 3, most};
  options.call.count = std::min(most, counts[random() % std::size(counts)]);
  options.in_place = random() % 2 == 1;
  options.on_device = random() % 3 == 0;
  options.timeout = 100 * kSecond;
  return options;
}

Algorithm PlannedFor(const SimJobOptions& options) {
  const size_t element = options.call.kind == CollectiveKind::kBarrier ? 1 : TypeBytes(options.call.type);
  const PlanInput input{options.call, element, 0, options.world.nranks, nullptr, nullptr};
  return MakePlan(input, options.plan, Topology(options.world.nranks)).algorithm;
}

void ExpectTheOraclesBits(const SimJobOptions& options) {
  SimJob job(options);
  ASSERT_TRUE(job.Run()) << "hang";
  for (int rank = 0; rank < options.world.nranks; ++rank) {
    ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
    ASSERT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
  }
}

struct Way {
  Algorithm algorithm;
  int least_ranks;
  int most_ranks;
};

class ExchangeTest : public testing::TestWithParam<Way> {};

// A sanitizer's build, which takes ten times as long, runs every thirteenth number of ranks beyond a few.
int Next(int nranks) { return nranks + (kSanitized && nranks >= 5 ? 13 : 1); }

TEST_P(ExchangeTest, GivesTheOraclesBitsForEveryNumberOfRanks) {
  for (int nranks = GetParam().least_ranks; nranks <= GetParam().most_ranks; nranks = Next(nranks)) {
    for (uint64_t seed = 1; seed <= (nranks <= 20 ? Rounds(kSanitized ? 4 : 8, 400) : Rounds(kSanitized ? 1 : 2, 50));
         ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      const SimJobOptions options = MakeOptions(GetParam().algorithm, seed, nranks);
      ASSERT_EQ(PlannedFor(options), GetParam().algorithm);
      ExpectTheOraclesBits(options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExchangeTest, TheLargestElementsFitForEveryNumberOfRanks) {
  for (int nranks = GetParam().least_ranks; nranks <= GetParam().most_ranks; nranks = Next(nranks)) {
    SCOPED_TRACE(testing::Message() << nranks << " ranks");
    SimJobOptions options = MakeOptions(GetParam().algorithm, 1, nranks);
    options.call.type = DataType::kComplex128;
    options.call.op = ReduceOp::kProd;
    options.call.count = options.plan.small_bytes / kMostElementBytes;
    ASSERT_EQ(PlannedFor(options), GetParam().algorithm);
    ExpectTheOraclesBits(options);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ExchangeTest, GivesTheBitsOfScaledSumsAndOfFunctionsInTheirOrder) {
  for (int nranks : {3, 7, 8, 16}) {
    if (kSanitized && nranks > 7) continue;
    for (uint64_t seed = 1; seed <= Rounds(4, 400); ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      SimJobOptions options = MakeOptions(GetParam().algorithm, seed, nranks);
      options.call.type = seed % 2 == 0 ? DataType::kUint32 : DataType::kFloat16;
      options.call.count = 100;
      if (seed % 2 == 0) {
        options.call.op = static_cast<ReduceOp>(kFirstUserOp);
        options.created.function = ComposeLines;
      } else {
        options.call.op = static_cast<ReduceOp>(kFirstPremulSum);
        options.created.factors = MakeFactors(options.call.type, nranks);
      }
      // A function's order stays the ring's.
      const bool by_tree = GetParam().algorithm == Algorithm::kTree && seed % 2 != 0;
      EXPECT_EQ(PlannedFor(options) == Algorithm::kTree, by_tree);
      ExpectTheOraclesBits(options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExchangeTest, ABarrierEndsNowhereBeforeAllHaveEntered) {
  for (int nranks = GetParam().least_ranks; nranks <= std::min(17, GetParam().most_ranks); nranks = Next(nranks)) {
    SimJobOptions options = MakeOptions(GetParam().algorithm, 1, nranks);
    options.call = Call{1, CollectiveKind::kBarrier, {}, {}, 0, 0};
    ASSERT_EQ(PlannedFor(options), GetParam().algorithm);
    options.on_device = false;
    const Nanoseconds entered = 5 * kMillisecond;
    SimJob job(options);
    job.world().StopRank(nranks / 2, 0);
    job.world().ResumeRank(nranks / 2, entered);
    ASSERT_TRUE(job.world().AdvanceToNextEvent());  // It stops before it does anything.
    ASSERT_TRUE(job.Run()) << "hang";
    for (int rank = 0; rank < nranks; ++rank) {
      ASSERT_TRUE(job.finished(rank));
      EXPECT_GE(job.ended_at(rank), entered) << "rank " << rank << " of " << nranks;
    }
  }
}

TEST(LinksNeededTest, BothEndsOfALinkNeedItAndThereAreFew) {
  const PlanSettings settings;
  for (const int nranks : {17, 64, 65, 100, 257}) {
    const Topology topology(nranks);
    std::set<std::tuple<int, int, int>> links;
    for (int rank = 0; rank < nranks; ++rank) {
      for (const NeededLink& link : LinksNeeded(rank, {settings, topology})) {
        EXPECT_TRUE(links.emplace(rank, link.peer, link.channel).second) << "twice";
      }
    }
    for (const auto& [rank, peer, channel] : links) EXPECT_TRUE(links.contains({peer, rank, channel}));
    // Two for each power of two, and three for each power of four of which one is a power of two itself.
    if (nranks > settings.mesh_ranks) {
      EXPECT_LE(LinksNeeded(0, {settings, topology}).size(), 18U + 5U);
    }
  }
}

TEST(PlanTest, WhatDoesNotFitASlotGoesRound) {
  PlanSettings settings;
  settings.slice_bytes = 1024;
  settings.small_bytes = 4800;
  const auto planned = [&settings](int nranks, size_t count) {
    const Call call{0, CollectiveKind::kAllreduce, DataType::kFloat64, ReduceOp::kSum, 0, count};
    return MakePlan({call, 8, 0, nranks, nullptr, nullptr}, settings, Topology(nranks)).algorithm;
  };
  EXPECT_EQ(planned(1500, 600), Algorithm::kRing);  // 751 blocks of 8 bytes.
  EXPECT_EQ(planned(200, 600), Algorithm::kLogSteps);
  EXPECT_EQ(planned(1500, 512), Algorithm::kTree);
}

TEST(TreeTest, EveryRankHasOneParentAndChildrenInRowsThatFollowEachOther) {
  for (int nranks = 2; nranks <= 300; ++nranks) {
    int links = 0;
    for (int rank = 0; rank < nranks; ++rank) {
      const std::vector<int> children = TreeChildren(rank, nranks);
      EXPECT_TRUE(std::is_sorted(children.begin(), children.end()));
      for (const int child : children) EXPECT_EQ(TreeParent(child), rank);
      links += static_cast<int>(children.size());
    }
    EXPECT_EQ(links, nranks - 1);
  }
}

std::string NameOf(const testing::TestParamInfo<Way>& info) {
  if (info.param.algorithm == Algorithm::kTree) return "Tree";
  return info.param.algorithm == Algorithm::kLogGather ? "LogGather" : "LogSteps";
}

INSTANTIATE_TEST_SUITE_P(Ways, ExchangeTest,
                         testing::Values(Way{Algorithm::kLogSteps, 2, 20}, Way{Algorithm::kLogGather, 3, 16},
                                         Way{Algorithm::kTree, 2, 70}),
                         NameOf);

}  // namespace
}  // namespace annulus
