// The engine on simulated links and devices: right bits without faults; with faults, one agreed verdict before the
// deadline. A failing case prints its seed, which replays it.

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "collectives/choice/plan.h"
#include "collectives/control/control.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllreduce,  CollectiveKind::kReduceScatter, CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
    CollectiveKind::kReduce,     CollectiveKind::kBarrier,       CollectiveKind::kGather,    CollectiveKind::kScatter,
    CollectiveKind::kAlltoall,   CollectiveKind::kGatherv,       CollectiveKind::kScatterv,  CollectiveKind::kAlltoallv,
    CollectiveKind::kAllgatherv, CollectiveKind::kReduceScatterv};

// Parts of sizes around a slice's, some of them empty; `scale` times as large.
void DrawParts(uint64_t seed, size_t scale, SimJobOptions* options) {
  const size_t sizes[] = {0, 1 * scale, 3 * scale, 100 * scale, 1000 * scale, 2500 * scale};
  PartsJob parts;
  parts.n = options->world.nranks;
  parts.has_gaps = seed % 3 != 0;
  parts.call = options->call;
  if (parts.call.op == ReduceOp::kAvg) parts.call.op = ReduceOp::kSum;  // PartsJob has no averages.
  parts.counts = MakeCounts(parts.call.kind, parts.n, parts.call.root, static_cast<unsigned>(seed), sizes);
  // As CallOf has it: the same number on all ranks.
  options->call = parts.call;
  options->call.count = 0;
  for (int r = 0; r < parts.n && !IsDirect(parts.call.kind); ++r) options->call.count += parts.Own(r);
  options->parts = parts;
}

// A job that the seed alone determines.
SimJobOptions MakeOptions(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](auto... values) {
    const int64_t all[] = {static_cast<int64_t>(values)...};
    return all[random() % std::size(all)];
  };
  SimJobOptions options;
  options.world.seed = seed;
  options.world.nranks = static_cast<int>(2 + random() % 4);
  options.world.kind = static_cast<SimKind>(random() % 3);
  options.plan.slots = static_cast<int>(pick(2, 3, 8));
  options.plan.channels = static_cast<int>(pick(1, 1, 3));
  options.plan.slice_bytes = pick(64, 512, 4096);
  options.plan.small_bytes = pick(0, 64, 4096);
  options.world.slots = options.plan.slots;
  options.world.slot_bytes = SlotBytes(options.plan);
  options.call.sequence = 1;
  options.call.kind = kKinds[random() % std::size(kKinds)];
  const Reduction reduction = AnyReduction(&random);
  options.call.type = reduction.type;
  options.call.op = reduction.op;
  options.call.count = pick(0, 1, 3, 100, 1000, 5000);
  if (HasRoot(options.call.kind)) options.call.root = static_cast<int>(random() % options.world.nranks);
  if (options.call.kind == CollectiveKind::kBarrier) options.call = Call{1, CollectiveKind::kBarrier, {}, {}, 0, 0};
  if (HasVariableParts(options.call.kind)) DrawParts(seed, 1, &options);
  options.in_place = random() % 2 && !IsAlltoall(options.call.kind);
  if (random() % 3 == 0) options.plan.algorithm = Algorithm::kLogSteps;
  if (random() % 4 == 0) options.plan.algorithm = Algorithm::kTree;
  if (random() % 3 == 0) options.plan.algorithm = Algorithm::kTwoHop;
  const bool by_system_calls = random() % 2 == 0;
  if (by_system_calls && random() % 2 == 0) {
    std::vector<int> host_of;
    for (int rank = 0; rank < options.world.nranks; ++rank) host_of.push_back(rank % 2);
    options.topology = Topology(options.world.nranks, host_of);
  }
  options.topology.by_system_calls = by_system_calls;
  return options;
}

// One collective serves tensors of one order of addition; who makes groups sees to that (Communicator::Arrange).
void KeepOneOrder(SimJobOptions* options) {
  const AlgorithmChoice choice(options->plan, options->topology);
  const auto has_own_order = [&](size_t count) {
    return HasOwnOrderInGroups(choice, options->call.op, count * TypeBytes(options->call.type));
  };
  const bool first = has_own_order(options->tensors.front());
  std::erase_if(options->tensors, [&](size_t count) { return has_own_order(count) != first; });
  options->call.count = std::accumulate(options->tensors.begin(), options->tensors.end(), size_t{0});
}

void ExpectRightBits(const SimJob& job, int rank) {
  const Bytes expected = job.Expected(rank);
  if (expected.empty()) return;
  ASSERT_EQ(job.Output(rank), expected) << "rank " << rank;
}

// Each seed asserts the same. Every run, that of a sanitizer too, takes so many that all kinds of calls and faults
// occur; to search further is the part of a soak.
class EngineSimTest : public testing::TestWithParam<bool> {};

TEST_P(EngineSimTest, WithoutFaultsEveryRankEndsWithTheOraclesBits) {
  for (uint64_t seed = 1; seed <= Rounds(200, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.on_device = GetParam();
    options.timeout = 100 * kSecond;
    SimJob job(options);
    ASSERT_TRUE(job.Run()) << "hang";
    for (int rank = 0; rank < options.world.nranks; ++rank) {
      ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
      ExpectRightBits(job, rank);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EngineSimTest, AGroupEndsWithTheBitsOfSeparateAllreduces) {
  for (uint64_t seed = 1; seed <= Rounds(150, 10000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    std::mt19937_64 random(seed * 31);
    options.parts.reset();
    options.call.kind = CollectiveKind::kAllreduce;
    options.call.root = 0;
    for (uint64_t left = 1 + random() % 20; left > 0; --left) {
      options.tensors.push_back(random() % 3 == 0 ? random() % 1500 : random() % 20);
    }
    KeepOneOrder(&options);
    options.on_device = GetParam();
    options.timeout = 100 * kSecond;
    SimJob job(options);
    ASSERT_TRUE(job.Run()) << "hang";
    for (int rank = 0; rank < options.world.nranks; ++rank) {
      ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
      ASSERT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
    }
  }
}

TEST_P(EngineSimTest, OperationsOfUsersGiveTheOraclesBits) {
  constexpr CollectiveKind kReducing[] = {CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter,
                                          CollectiveKind::kReduce};
  for (uint64_t seed = 1; seed <= Rounds(150, 10000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.on_device = GetParam();
    options.timeout = 100 * kSecond;
    options.parts.reset();
    Call& call = options.call;
    call = {1, kReducing[seed % 3], static_cast<DataType>(seed % kNumDataTypes), {}, 0, call.count};
    if (HasRoot(call.kind)) call.root = static_cast<int>(seed % options.world.nranks);
    if (seed % 5 < 3) {
      call.op = static_cast<ReduceOp>(kFirstPremulSum);
      if (!CanReduce(call.type, call.op)) call.type = DataType::kComplex64;
      options.created.factors = MakeFactors(call.type, options.world.nranks);
    } else {
      call.op = static_cast<ReduceOp>(kFirstUserOp);
      call.type = DataType::kUint32;
      options.created.function = ComposeLines;
    }
    if (IsAllreduce(call.kind) && seed % 2) {
      options.tensors = {call.count / 3, 0, call.count - call.count / 3};
      KeepOneOrder(&options);
    }
    SimJob job(options);
    ASSERT_TRUE(job.Run()) << "hang";
    for (int rank = 0; rank < options.world.nranks; ++rank) {
      ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
      ExpectRightBits(job, rank);
      if (HasFatalFailure()) return;
    }
  }
}

// Returns the rank to blame, or -1 when several may be blamed.
int Break(SimJob* job, std::mt19937_64* random, int n) {
  const Nanoseconds at = static_cast<Nanoseconds>((*random)() % (300 * kMicrosecond));
  const int rank = static_cast<int>((*random)() % n);
  const int neighbour = (rank + 1) % n;
  switch ((*random)() % 5) {
    case 0:
      job->world().KillRank(rank, at);
      return rank;
    case 1:
      job->world().StopRank(rank, at);
      return rank;
    case 2:
      job->world().CutLink(rank, neighbour, at);
      return -1;
    case 3:
      job->world().CorruptLink(rank, neighbour, at);
      return -1;
    default:
      job->world().MuteLink(rank, neighbour, at);
      return -1;
  }
}

TEST_P(EngineSimTest, AnyFaultEndsInRightBitsOrOneVerdictBeforeTheDeadline) {
  uint64_t verdicts = 0;
  for (uint64_t seed = 1; seed <= Rounds(300, 40000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.on_device = GetParam();
    options.call.count *= 5;
    if (options.parts) DrawParts(seed, 5, &options);
    SimJob job(options);
    std::mt19937_64 random(seed * 77);
    const int culprit = Break(&job, &random, options.world.nranks);
    ASSERT_TRUE(job.Run()) << "hang";
    std::optional<Verdict> first;
    for (int rank = 0; rank < options.world.nranks; ++rank) {
      if (!job.world().runs(rank)) continue;
      ASSERT_LE(job.ended_at(rank), options.timeout + Control::kVerdictGrace + 100 * kMillisecond);
      if (job.finished(rank)) {
        ExpectRightBits(job, rank);
        if (HasFatalFailure()) return;
        continue;
      }
      const Verdict& verdict = *job.verdict(rank);
      if (!first) first = verdict;
      ASSERT_EQ(verdict.code, first->code);
      ASSERT_EQ(verdict.rank, first->rank);
      if (culprit >= 0) {
        ASSERT_EQ(verdict.rank, culprit) << verdict.message;
      }
      // When rank 0 does not answer every rank finds that out for itself, and says who noticed.
      if (culprit != 0) {
        ASSERT_EQ(verdict.message, first->message);
      }
    }
    verdicts += first.has_value();
  }
  EXPECT_GT(verdicts * 4, Rounds(300, 40000))
      << "too few faults hit a running collective for the test to mean something";
}

TEST_P(EngineSimTest, RunsReplayFromTheirSeed) {
  for (uint64_t seed : {7, 8, 9}) {
    Nanoseconds ended[2];
    for (Nanoseconds& end : ended) {
      SimJobOptions options = MakeOptions(seed);
      options.on_device = GetParam();
      SimJob job(options);
      ASSERT_TRUE(job.Run());
      end = job.ended_at(0);
    }
    EXPECT_EQ(ended[0], ended[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, EngineSimTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "SimDevice" : "Host"; });

}  // namespace
}  // namespace annulus
