// Two-level allreduces on simulated links and devices: the documented bits without faults; with faults, in whichever
// stage they fall, one agreed verdict before the deadline. A failing case prints its seed, which replays it.

#include <gtest/gtest.h>

#include <random>

#include "collectives/control/control.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr std::pair<int, int> kShapes[] = {{2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}, {3, 3}};

// A job that the seed alone determines.
SimJobOptions MakeOptions(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](auto... values) {
    const int64_t all[] = {static_cast<int64_t>(values)...};
    return all[random() % std::size(all)];
  };
  SimJobOptions options;
  const auto [hosts, members] = kShapes[random() % std::size(kShapes)];
  std::vector<int> host_of;
  const bool round_robin = random() % 3 != 0;
  for (int r = 0; r < hosts * members; ++r) host_of.push_back(round_robin ? r % hosts : r / members);
  // Host 0 is rank 0's, host 1 that of the first rank which is not on host 0, and so on.
  if (round_robin && random() % 2 == 0) std::shuffle(host_of.begin() + hosts, host_of.end(), random);
  options.topology = Topology(hosts * members, host_of);
  options.world.seed = seed;
  options.world.nranks = hosts * members;
  options.world.kind = static_cast<SimKind>(random() % 3);
  options.plan.slots = static_cast<int>(pick(2, 3, 8));
  options.plan.channels = static_cast<int>(pick(1, 1, 3));
  options.plan.slice_bytes = pick(512, 1024, 4096);
  options.plan.mesh_ranks = static_cast<int>(pick(2, 64));
  options.world.slots = options.plan.slots;
  options.world.slot_bytes = SlotBytes(options.plan);
  options.call.sequence = 1;
  options.call.kind = CollectiveKind::kAllreduce;
  const Reduction reduction = AnyReduction(&random);
  options.call.type = reduction.type;
  options.call.op = reduction.op;
  // Around the size where the two levels begin.
  const size_t least = kMostOneLevelBytes / TypeBytes(options.call.type);
  options.call.count = least + static_cast<size_t>(pick(0, 1, 100, 3000, 10000));
  options.in_place = random() % 2 == 0;
  return options;
}

// Each seed asserts the same. Every run, that of a sanitizer too, takes so many that all kinds of calls and faults
// occur; to search further is the part of a soak.
class LevelsSimTest : public testing::TestWithParam<bool> {};

void ExpectTheBits(SimJobOptions options) {
  options.timeout = 100 * kSecond;
  SimJob job(options);
  ASSERT_TRUE(job.Run()) << "hang";
  for (int rank = 0; rank < options.world.nranks; ++rank) {
    ASSERT_TRUE(job.finished(rank)) << (job.verdict(rank) ? job.verdict(rank)->message : "");
    ASSERT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
  }
}

TEST_P(LevelsSimTest, WithoutFaultsEveryRankEndsWithTheOraclesBits) {
  for (uint64_t seed = 1; seed <= Rounds(75, 3000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.on_device = GetParam();
    ExpectTheBits(options);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LevelsSimTest, FactorsAreAppliedOnceToEachRanksOwnElements) {
  for (uint64_t seed = 1; seed <= Rounds(20, 1000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.call.op = static_cast<ReduceOp>(kFirstPremulSum);
    options.created.factors = MakeFactors(options.call.type, options.world.nranks);
    options.on_device = GetParam();
    ExpectTheBits(options);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LevelsSimTest, AGroupOfLargeTensorsEndsWithTheBitsOfSeparateAllreduces) {
  for (uint64_t seed = 1; seed <= Rounds(20, 1000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    const size_t least = kMostOneLevelBytes / TypeBytes(options.call.type);
    // As the communicator groups them: all above the size where the two levels begin, or all below.
    options.tensors = seed % 2 == 0 ? std::vector<size_t>{least + 1, 2 * least, least + 77}
                                    : std::vector<size_t>{least, 3, 0, least / 2, least};
    options.call.count = 0;
    for (size_t count : options.tensors) options.call.count += count;
    options.on_device = GetParam();
    ExpectTheBits(options);
    if (HasFatalFailure()) return;
  }
}

// Returns the rank to blame, or -1 when several may be blamed.
int Break(SimJob* job, std::mt19937_64* random, const HostGrid& grid) {
  const int n = grid.hosts() * grid.members();
  const Nanoseconds at = static_cast<Nanoseconds>((*random)() % (500 * kMicrosecond));
  const int rank = static_cast<int>((*random)() % n);
  const bool inner = (*random)() % 2 == 0;
  const int peer = inner ? grid.Inner(rank).next : grid.Outer(rank).next;
  switch ((*random)() % 5) {
    case 0:
      job->world().KillRank(rank, at);
      return rank;
    case 1:
      job->world().StopRank(rank, at);
      return rank;
    case 2:
      job->world().CutLink(rank, peer, at);
      return -1;
    case 3:
      job->world().CorruptLink(rank, peer, at);
      return -1;
    default:
      job->world().MuteLink(rank, peer, at);
      return -1;
  }
}

TEST_P(LevelsSimTest, AnyFaultEndsInRightBitsOrOneVerdictBeforeTheDeadline) {
  uint64_t verdicts = 0;
  for (uint64_t seed = 1; seed <= Rounds(100, 5000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimJobOptions options = MakeOptions(seed);
    options.on_device = GetParam();
    SimJob job(options);
    std::mt19937_64 random(seed * 77);
    const int culprit = Break(&job, &random, options.topology.grid);
    ASSERT_TRUE(job.Run()) << "hang";
    std::optional<Verdict> first;
    for (int rank = 0; rank < options.world.nranks; ++rank) {
      if (!job.world().runs(rank)) continue;
      ASSERT_LE(job.ended_at(rank), options.timeout + Control::kVerdictGrace + 100 * kMillisecond);
      if (job.finished(rank)) {
        ASSERT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
        continue;
      }
      const Verdict& verdict = *job.verdict(rank);
      if (!first) first = verdict;
      ASSERT_EQ(verdict.code, first->code);
      ASSERT_EQ(verdict.rank, first->rank);
      if (culprit >= 0) {
        ASSERT_EQ(verdict.rank, culprit) << verdict.message;
      }
      if (culprit != 0) {
        ASSERT_EQ(verdict.message, first->message);
      }
    }
    verdicts += first.has_value();
  }
  EXPECT_GT(verdicts * 5, Rounds(100, 5000) * 2)
      << "too few faults hit a running collective for the test to mean something";
}

INSTANTIATE_TEST_SUITE_P(Memory, LevelsSimTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "SimDevice" : "Host"; });

}  // namespace
}  // namespace annulus
