// Allreduce and barrier in log steps, on simulated links: the oracle's bits for every number of ranks, and the links
// that it needs.
#include "collectives/log_exchange.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/collectives/sim_job.h"

namespace annulus {
namespace {

SimJobOptions MakeOptions(uint64_t seed, int nranks) {
  std::mt19937_64 random(seed * 1009 + static_cast<uint64_t>(nranks));
  SimJobOptions options;
  options.world.seed = seed;
  options.world.nranks = nranks;
  options.world.kind = static_cast<SimKind>(random() % 3);
  options.plan.slots = 2 + static_cast<int>(random() % 4);
  options.plan.channels = 1 + static_cast<int>(random() % 2);
  options.plan.slice_bytes = 1024;
  options.plan.small_bytes = 4096;
  options.plan.log_ranks = 2;
  options.plan.mesh_ranks = 0;
  options.world.slots = options.plan.slots;
  options.world.slot_bytes = SlotBytes(options.plan);
  options.call.sequence = 1;
  options.call.kind = CollectiveKind::kAllreduce;
  options.call.type = static_cast<DataType>(random() % kNumDataTypes);
  options.call.op = static_cast<ReduceOp>(random() % kNumReduceOps);
  const size_t most = options.plan.small_bytes / TypeBytes(options.call.type);
  const size_t counts[] = {0, 1, static_cast<size_t>(nranks) - 1, static_cast<size_t>(nranks) + 1, most / 3, most};
  options.call.count = std::min(most, counts[random() % std::size(counts)]);
  options.in_place = random() % 2 == 1;
  options.on_device = random() % 3 == 0;
  options.timeout = 100 * kSecond;
  return options;
}

void ExpectTheOraclesBits(const SimJobOptions& options) {
  const PlanInput input{options.call, TypeBytes(options.call.type), 0, options.world.nranks, nullptr, nullptr};
  ASSERT_EQ(MakePlan(input, options.plan).algorithm, Algorithm::kLogSteps);
  SimJob job(options);
  ASSERT_TRUE(job.Run()) << "hang";
  for (int rank = 0; rank < options.world.nranks; ++rank) {
    ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
    ASSERT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
  }
}

TEST(LogExchangeTest, GivesTheOraclesBitsForEveryNumberOfRanks) {
  for (int nranks = 2; nranks <= 20; ++nranks) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      ExpectTheOraclesBits(MakeOptions(seed, nranks));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LogExchangeTest, GivesTheBitsOfScaledSumsAndOfFunctionsInTheirOrder) {
  for (int nranks : {2, 3, 7, 8, 17}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      SimJobOptions options = MakeOptions(seed, nranks);
      options.call.type = seed % 2 == 0 ? DataType::kUint32 : DataType::kFloat16;
      options.call.count = 100;
      if (seed % 2 == 0) {
        options.call.op = static_cast<ReduceOp>(kFirstUserOp);
        options.created.function = ComposeLines;
      } else {
        options.call.op = static_cast<ReduceOp>(kFirstPremulSum);
        options.created.factors = MakeFactors(options.call.type, nranks);
      }
      ExpectTheOraclesBits(options);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LogExchangeTest, ABarrierEndsNowhereBeforeAllHaveEntered) {
  for (int nranks = 2; nranks <= 17; ++nranks) {
    SimJobOptions options = MakeOptions(1, nranks);
    options.call = Call{1, CollectiveKind::kBarrier, {}, {}, 0, 0};
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

TEST(LogExchangeTest, BothEndsOfALinkNeedItAndThereAreFew) {
  const PlanSettings settings;
  for (const int nranks : {17, 64, 65, 100, 257}) {
    std::set<std::tuple<int, int, int>> links;
    for (int rank = 0; rank < nranks; ++rank) {
      for (const NeededLink& link : LinksNeeded(rank, nranks, settings)) {
        EXPECT_TRUE(links.emplace(rank, link.peer, link.channel).second) << "twice";
      }
    }
    for (const auto& [rank, peer, channel] : links) EXPECT_TRUE(links.contains({peer, rank, channel}));
    // Two for each power of two.
    if (nranks > settings.mesh_ranks) {
      EXPECT_LE(LinksNeeded(0, nranks, settings).size(), 18U);
    }
  }
}

TEST(LogExchangeTest, WhatDoesNotFitASlotGoesRound) {
  PlanSettings settings;
  settings.slice_bytes = 1024;
  settings.small_bytes = 1024;
  PlanInput input{
      {0, CollectiveKind::kAllreduce, DataType::kFloat64, ReduceOp::kSum, 0, 128}, 8, 0, 1000, nullptr, nullptr};
  EXPECT_EQ(MakePlan(input, settings).algorithm, Algorithm::kRing);  // 501 blocks of 8 bytes.
  input.nranks = 200;
  EXPECT_EQ(MakePlan(input, settings).algorithm, Algorithm::kLogSteps);
}

}  // namespace
}  // namespace annulus
