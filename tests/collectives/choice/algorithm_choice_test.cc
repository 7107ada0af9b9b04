// The choice of algorithms: which one for which call, that users' wishes win where they can, and that it is a function
// of what it should depend on.
#include "collectives/choice/algorithm_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "collectives/algorithms/table.h"
#include "collectives/choice/plan.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr CollectiveKind kChosenKinds[] = {
    CollectiveKind::kAllreduce,  CollectiveKind::kReduceScatter,  CollectiveKind::kAllgather,
    CollectiveKind::kBroadcast,  CollectiveKind::kReduce,         CollectiveKind::kBarrier,
    CollectiveKind::kAllgatherv, CollectiveKind::kReduceScatterv, CollectiveKind::kAllreduceGroup};
constexpr size_t kSizes[] = {0, 1, 8, 1000, 1 << 10, 16 << 10, (16 << 10) + 1, 1 << 20, size_t{1} << 40};

const char* ReasonAgainst(const AlgorithmChoice& choice, Algorithm algorithm, CollectiveKind kind, size_t bytes) {
  for (const Candidate& candidate : choice.Candidates(kind, bytes)) {
    if (candidate.algorithm == algorithm) return candidate.why_not;
  }
  return "no candidate";
}

TEST(Algorithms, HaveNamesByWhichTheyAreFound) {
  EXPECT_STREQ(kAlgorithmWords[0], "auto");
  for (const AlgorithmName& each : kAlgorithms) {
    Algorithm found{};
    ASSERT_TRUE(FindAlgorithm(each.name, &found));
    EXPECT_EQ(found, each.algorithm);
    EXPECT_STREQ(AlgorithmText(found), each.name);
  }
  Algorithm found{};
  EXPECT_FALSE(FindAlgorithm("auto", &found));
  EXPECT_FALSE(FindAlgorithm("rin", &found));
}

TEST(AlgorithmChoiceTest, IsOneThatTheCallCanBeDoneBy) {
  for (const int nranks : {2, 3, 16, 17, 64, 1000}) {
    const AlgorithmChoice choice(PlanSettings{}, Topology(nranks));
    for (const CollectiveKind kind : kChosenKinds) {
      for (const size_t bytes : kSizes) {
        EXPECT_EQ(ReasonAgainst(choice, choice.At(kind, bytes), kind, bytes), nullptr) << nranks << " " << bytes;
        EXPECT_EQ(choice.At(kind, bytes), choice.Choose(kind, bytes));
      }
    }
  }
}

TEST(AlgorithmChoiceTest, OfCallsThatCanBeDoneInOneWayIsThatOne) {
  const AlgorithmChoice choice(PlanSettings{}, Topology(4));
  EXPECT_EQ(choice.At(CollectiveKind::kGatherv, 100'000), Algorithm::kDirect);
  EXPECT_EQ(choice.At(CollectiveKind::kSend, 100), Algorithm::kMessage);
  EXPECT_EQ(AlgorithmChoice(PlanSettings(), Topology(1)).At(CollectiveKind::kAllreduce, 8), Algorithm::kRing);
}

TEST(AlgorithmChoiceTest, SmallPartsGoInOneHopAndOthersStraight) {
  for (const auto kind : {CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kAlltoall,
                          CollectiveKind::kGatherv, CollectiveKind::kScatterv, CollectiveKind::kAlltoallv}) {
    PlanSettings settings;
    const AlgorithmChoice choice(settings, Topology(16));
    EXPECT_EQ(choice.At(kind, 100), Algorithm::kOneHop);
    EXPECT_EQ(choice.At(kind, settings.small_bytes), Algorithm::kOneHop);
    EXPECT_EQ(choice.At(kind, settings.small_bytes + 1), Algorithm::kDirect);
    EXPECT_EQ(AlgorithmChoice(settings, Topology(17)).At(kind, 100), Algorithm::kDirect);
    EXPECT_EQ(choice.Candidates(kind, 100).size(), 2u);
    for (const AlgorithmName& wish : kAlgorithms) {  // As if it were not set, since no other one can do these.
      settings.algorithm = wish.algorithm;
      EXPECT_EQ(AlgorithmChoice(settings, Topology(16)).At(kind, 100), Algorithm::kOneHop);
    }
  }
}

TEST(AlgorithmChoiceTest, IsTheUsersWhereTheCallCanBeDoneSo) {
  for (const AlgorithmName& each : kAlgorithms) {
    PlanSettings settings;
    settings.algorithm = each.algorithm;
    for (const int nranks : {2, 5, 16, 17, 100}) {
      const AlgorithmChoice choice(settings, Topology(nranks));
      for (const CollectiveKind kind : kChosenKinds) {
        for (const size_t bytes : kSizes) {
          const bool possible = ReasonAgainst(choice, each.algorithm, kind, bytes) == nullptr;
          EXPECT_EQ(choice.At(kind, bytes) == each.algorithm, possible) << each.name << nranks << " " << bytes;
        }
      }
    }
  }
}

TEST(AlgorithmChoiceTest, TheSmallestSizeThatIsNotSmallGoesRound) {
  PlanSettings settings;
  settings.small_bytes = 1000;
  const AlgorithmChoice choice(settings, Topology(4));
  EXPECT_EQ(choice.At(CollectiveKind::kAllreduce, 1000), Algorithm::kOneHop);
  EXPECT_EQ(choice.At(CollectiveKind::kAllreduce, 1001), Algorithm::kRing);
  settings.small_bytes = 0;
  EXPECT_EQ(AlgorithmChoice(settings, Topology(4)).At(CollectiveKind::kAllreduce, 1), Algorithm::kRing);
  EXPECT_EQ(AlgorithmChoice(settings, Topology(4)).At(CollectiveKind::kBarrier, 0), Algorithm::kOneHop);
}

// `hosts` of `members` ranks each, in blocks or dealt out in turn.
Topology OnHosts(int hosts, int members, bool in_turn) {
  std::vector<int> host_of;
  for (int rank = 0; rank < hosts * members; ++rank) host_of.push_back(in_turn ? rank % hosts : rank / members);
  Topology topology(hosts * members, host_of);
  topology.near = &kShmTransport;
  topology.far = &kTcpTransport;
  return topology;
}

TEST(AlgorithmChoiceTest, TwoLevelsAreTakenWhereTheyTakeLessTimeThanTheRing) {
  for (const int hosts : {2, 3, 4, 8, 32, 100}) {
    for (const int members : {2, 3, 4, 8, 16}) {
      for (const bool in_turn : {false, true}) {
        const AlgorithmChoice choice(PlanSettings(), OnHosts(hosts, members, in_turn));
        for (size_t bytes = 32 << 10; bytes <= size_t{1} << 32; bytes *= 2) {
          SCOPED_TRACE(testing::Message() << hosts << " hosts of " << members << ", " << bytes << " bytes " << in_turn);
          double two_level = 0;
          double ring = 0;
          for (const Candidate& candidate : choice.Candidates(CollectiveKind::kAllreduce, bytes)) {
            if (candidate.algorithm == Algorithm::kTwoLevel) two_level = candidate.seconds;
            if (candidate.algorithm == Algorithm::kRing) ring = candidate.seconds;
          }
          EXPECT_LT(two_level, ring);
          EXPECT_EQ(choice.At(CollectiveKind::kAllreduce, bytes), Algorithm::kTwoLevel);
        }
      }
    }
  }
}

TEST(AlgorithmChoiceTest, TheOrderOfAdditionDependsOnBytesAndTheLayoutAlone) {
  constexpr size_t kMost = 16 << 10;  // As docs/determinism.md has it.
  PlanSettings settings;
  const auto order = [&settings](const Topology& topology, CollectiveKind kind, size_t bytes) {
    return OrderOf(AlgorithmChoice(settings, topology).At(kind, bytes));
  };
  const Topology even = OnHosts(2, 2, false);
  for (const size_t small_bytes : {0, 1000, 16 << 10, 20000, 1 << 20}) {
    settings.small_bytes = small_bytes;
    EXPECT_EQ(order(even, CollectiveKind::kAllreduce, kMost), Order::kRing);
    EXPECT_EQ(order(even, CollectiveKind::kAllreduce, kMost + 1), Order::kOther);
    EXPECT_EQ(order(even, CollectiveKind::kReduceScatter, kMost + 1), Order::kRing);
    settings.algorithm = Algorithm::kRing;
    EXPECT_EQ(order(even, CollectiveKind::kAllreduce, kMost + 1), Order::kRing);
    settings.algorithm = std::nullopt;
    EXPECT_EQ(order(Topology(4, {0, 0, 0, 1}), CollectiveKind::kAllreduce, kMost + 1), Order::kRing);
  }
}

TEST(AlgorithmChoiceTest, WhoNamesOneOfTheRingsOrderGetsNoOtherOrder) {
  for (const AlgorithmName& each : kAlgorithms) {
    const std::pair<int, int> layouts[] = {{2, 2}, {4, 2}, {2, 16}, {32, 2}, {1, 40}};
    for (const auto& [hosts, members] : layouts) {
      PlanSettings settings;
      settings.algorithm = each.algorithm;
      MeasuredFactors measured{};
      measured[PlaceOf(Algorithm::kRing)] = {1, 100, 100, 100};
      for (const bool is_measured : {false, true}) {
        const AlgorithmChoice choice(settings, OnHosts(hosts, members, true),
                                     is_measured ? std::optional(measured) : std::nullopt);
        size_t others = 0;
        for (const size_t bytes : kSizes) {
          const Algorithm chosen = choice.At(CollectiveKind::kAllreduce, bytes);
          if (OrderOf(chosen) != Order::kRing) ++others;
          EXPECT_EQ(OrderOf(choice.InRingOrderAt(CollectiveKind::kAllreduce, bytes)), Order::kRing);
        }
        EXPECT_TRUE(each.order == Order::kOther || others == 0) << each.name << hosts << " " << members;
      }
    }
  }
}

TEST(AlgorithmChoiceTest, TellsTheTimesOfTheCallAndNotOfItsClass) {
  const AlgorithmChoice choice(PlanSettings(), OnHosts(2, 2, false));
  for (const size_t bytes : {600, 1100, 20'000, 600'000}) {
    const std::vector<Candidate> less = choice.Candidates(CollectiveKind::kAllreduce, bytes);
    const std::vector<Candidate> more = choice.Candidates(CollectiveKind::kAllreduce, bytes + bytes / 2);
    for (size_t row = 0; row < less.size(); ++row) {
      EXPECT_EQ(less[row].why_not, more[row].why_not);
      EXPECT_TRUE(less[row].why_not != nullptr || less[row].seconds < more[row].seconds) << bytes;
    }
  }
}

TEST(AlgorithmChoiceTest, LogStepsThatAreWantedHaveTheirLinksAndAreTaken) {
  PlanSettings settings;
  const Topology four(4);
  const auto adds_links = [&] {
    std::vector<NeededLink> links;
    RowOf(Algorithm::kLogSteps).add_links(0, {settings, four}, &links);
    return !links.empty();
  };
  EXPECT_FALSE(adds_links());
  settings.algorithm = Algorithm::kLogSteps;
  EXPECT_TRUE(adds_links());
  EXPECT_EQ(AlgorithmChoice(settings, four).At(CollectiveKind::kAllreduce, 1024), Algorithm::kLogSteps);
}

// -- By default and by measurements -----------------------------------------------------------------------------------

Topology OnHosts(int nranks, int hosts) {
  std::vector<int> host_of;
  for (int rank = 0; rank < nranks; ++rank) host_of.push_back(rank * hosts / nranks);
  Topology topology(nranks, host_of);
  topology.by_system_calls = hosts > 1;
  topology.near = &kShmTransport;
  topology.far = &kTcpTransport;
  return topology;
}

AlgorithmChoice DefaultChoice(const Topology& topology) { return {PlanSettings(), topology}; }

// One algorithm's initial for each power of two from 1 B to 64 KiB. What stands in for the ring, which it does only
// where ranks share memory, counts as the ring.
std::string Chosen(const AlgorithmChoice& choice, CollectiveKind kind) {
  std::string chosen;
  for (size_t bytes = 1; bytes <= 64 << 10; bytes *= 2) {
    const Algorithm algorithm = choice.At(kind, bytes);
    chosen += RowOf(algorithm).stands_in_for_ring != nullptr ? 'r' : AlgorithmText(algorithm)[0];
  }
  return chosen;
}

TEST(DefaultChoiceTest, TwoHopsStandInForTheRingWhereRanksShareMemory) {
  const Topology near = OnHosts(4, 1);
  const Topology far = OnHosts(4, 2);
  for (const auto& [kind, least] : {std::pair(CollectiveKind::kAllreduce, size_t{256} << 10),
                                    {CollectiveKind::kReduceScatter, size_t{64} << 10},
                                    {CollectiveKind::kAllgather, size_t{64} << 10}}) {
    EXPECT_EQ(DefaultChoice(near).At(kind, least), Algorithm::kTwoHop) << KindName(kind);
    EXPECT_EQ(DefaultChoice(near).At(kind, least / 2), Algorithm::kRing) << KindName(kind);
    EXPECT_NE(DefaultChoice(far).At(kind, least), Algorithm::kTwoHop) << KindName(kind);
  }
  EXPECT_EQ(DefaultChoice(near).At(CollectiveKind::kReduceScatter, size_t{64} << 20), Algorithm::kTwoHop);
  EXPECT_EQ(DefaultChoice(near).At(CollectiveKind::kAllgather, size_t{4} << 20), Algorithm::kTwoHop);
  EXPECT_EQ(DefaultChoice(near).At(CollectiveKind::kAllgather, size_t{8} << 20), Algorithm::kRing);
  EXPECT_EQ(DefaultChoice(near).At(CollectiveKind::kReduce, size_t{64} << 20), Algorithm::kRing);
}

TEST(DefaultChoiceTest, DependsOnRanksBytesAndLayoutAlone) {
  for (const int nranks : {2, 4, 8, 16, 17, 64}) {
    for (const int hosts : {1, 2, nranks}) {
      Topology topology = OnHosts(nranks, hosts);
      const AlgorithmChoice choice = DefaultChoice(topology);
      topology.ranks_per_core = 8;
      topology.near = &kTcpTransport;
      for (const CollectiveKind kind : kChosenKinds)
        EXPECT_EQ(Chosen(choice, kind), Chosen(DefaultChoice(topology), kind)) << nranks << " " << hosts;
    }
  }
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(2, 1)), CollectiveKind::kAllreduce), "ooooooooooooooooo");
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(2, 1)), CollectiveKind::kAllgather), "ooooooooooooooorr");
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(3, 1)), CollectiveKind::kAllreduce), "ooooooooooooooorr");
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(16, 1)), CollectiveKind::kAllreduce), "ooooooooooooooorr");
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(64, 64)), CollectiveKind::kAllreduce), "tttttttttttttllrr");
  EXPECT_EQ(Chosen(DefaultChoice(OnHosts(64, 64)), CollectiveKind::kBroadcast), "rrrrrrrrrrrrrrrrr");
}

Algorithm PlannedForTwo(const PlanSettings& settings, size_t count, size_t element_bytes,
                        ReduceOp op = ReduceOp::kSum) {
  PlanInput input;
  input.call.op = op;
  input.call.kind = CollectiveKind::kAllreduce;
  input.call.count = count;
  input.element_bytes = element_bytes;
  input.nranks = 2;
  return MakePlan(input, settings, Topology(2)).algorithm;
}

TEST(DefaultChoiceTest, TwoRanksGoInOneHopUpToFourTimesTheSmallBytes) {
  PlanSettings settings;
  EXPECT_EQ(PlannedForTwo(settings, 64 << 10, 2), Algorithm::kRing);
  EXPECT_EQ(PlannedForTwo(settings, 32 << 10, 2), Algorithm::kOneHop);
  EXPECT_EQ(PlannedForTwo(settings, (16 << 10) + 1, 4), Algorithm::kRing);
  settings.small_bytes = 1000;
  EXPECT_EQ(PlannedForTwo(settings, 512, 4), Algorithm::kOneHop);
  EXPECT_EQ(PlannedForTwo(settings, 1025, 4), Algorithm::kRing);  // Its class ends at 8 KiB.
  settings.small_bytes = 0;
  EXPECT_EQ(PlannedForTwo(settings, 1, 4), Algorithm::kRing);
}

TEST(DefaultChoiceTest, OneHopOfTwoRanksNeedsNoLargerSlotsThanOthers) {
  PlanSettings settings;
  settings.slice_bytes = 1024;
  EXPECT_EQ(SlotBytes(settings), settings.small_bytes);
  EXPECT_EQ(PlannedForTwo(settings, 4 << 10, 4), Algorithm::kOneHop);
  EXPECT_EQ(PlannedForTwo(settings, 8 << 10, 4), Algorithm::kRing);
  settings.slice_bytes = 32 << 10;
  EXPECT_EQ(PlannedForTwo(settings, 8 << 10, 4), Algorithm::kOneHop);
}

TEST(DefaultChoiceTest, ElementsOfOneByteGoInOneHopWhileSmall) {
  PlanSettings settings;
  EXPECT_EQ(PlannedForTwo(settings, 16 << 10, 1), Algorithm::kOneHop);
  EXPECT_EQ(PlannedForTwo(settings, (16 << 10) + 1, 1), Algorithm::kRing);
  settings.algorithm = Algorithm::kOneHop;
  EXPECT_EQ(PlannedForTwo(settings, 64 << 10, 1), Algorithm::kOneHop);
}

TEST(DefaultChoiceTest, FunctionsOfTheUsersGoInOneHopWhileSmall) {
  const auto user_op = static_cast<ReduceOp>(kFirstUserOp);
  ASSERT_TRUE(IsUserOp(user_op));
  EXPECT_EQ(PlannedForTwo(PlanSettings(), 4 << 10, 4, user_op), Algorithm::kOneHop);
  EXPECT_EQ(PlannedForTwo(PlanSettings(), 16 << 10, 4, user_op), Algorithm::kRing);
}

// By the row, for initials do not tell log steps from a gather.
TEST(DefaultChoiceTest, SocketsOfOneHostAskForLogStepsWhereOneHopSendsMuch) {
  const auto chosen = [](int nranks, size_t bytes, int hosts = 1) {
    Topology topology = OnHosts(nranks, hosts);
    topology.by_system_calls = true;
    return AlgorithmText(DefaultChoice(topology).At(CollectiveKind::kAllreduce, bytes));
  };
  EXPECT_STREQ(chosen(8, 4 << 10), "log_gather");
  EXPECT_STREQ(chosen(8, 8 << 10), "one_hop");
  EXPECT_STREQ(chosen(8, 16 << 10), "log_steps");
  EXPECT_STREQ(chosen(8, 32 << 10), "log_steps");
  EXPECT_STREQ(chosen(8, (32 << 10) + 1), "ring");
  EXPECT_STREQ(chosen(16, 8 << 10), "log_steps");
  EXPECT_STREQ(chosen(7, 16 << 10), "one_hop");
  EXPECT_STREQ(chosen(7, 32 << 10), "ring");
  EXPECT_STREQ(chosen(17, 32 << 10), "ring");
  EXPECT_STREQ(chosen(9, 32 << 10, 2), "ring");  // Hosts of unequally many ranks, which have one level.
}

TEST(MeasuredChoiceTest, TakesTheFastestByTheModel) {
  const Topology topology = OnHosts(8, 8);
  for (size_t slow = 0; slow < std::size(kAlgorithms); ++slow) {
    MeasuredFactors factors{};
    for (AlgorithmFactors& each : factors) each.is_measured = 1;
    factors[slow] = {1, 100, 100, 100};
    const AlgorithmChoice choice(PlanSettings(), topology, factors);
    for (const size_t bytes : {8, 1024, 16 << 10}) {
      const Algorithm chosen = choice.At(CollectiveKind::kAllreduce, bytes);
      EXPECT_NE(chosen, kAlgorithms[slow].algorithm);
      const auto candidates = choice.Candidates(CollectiveKind::kAllreduce, bytes);
      const auto own = std::ranges::find(candidates, chosen, &Candidate::algorithm);
      for (const Candidate& each : candidates) {
        EXPECT_TRUE(each.why_not != nullptr || own->seconds <= each.seconds) << AlgorithmText(each.algorithm);
      }
    }
  }
}

TEST(ModelledSecondsTest, GrowWithEitherFactor) {
  const PlanSettings settings;
  const Topology topology = OnHosts(8, 8);
  const AlgorithmJob job{settings, topology};
  for (const AlgorithmName& each : kAlgorithms) {
    const double once = ModelledSeconds(job, CostFactors(), each.algorithm, 1024);
    if (once == 0) continue;
    EXPECT_GT(ModelledSeconds(job, CostFactors{2, 1}, each.algorithm, 1024), once) << each.name;
    EXPECT_GE(ModelledSeconds(job, CostFactors{1, 2}, each.algorithm, 1024), once) << each.name;
    EXPECT_LE(ModelledSeconds(job, CostFactors{2, 2}, each.algorithm, 1024), 2.001 * once) << each.name;
  }
}

}  // namespace
}  // namespace annulus
