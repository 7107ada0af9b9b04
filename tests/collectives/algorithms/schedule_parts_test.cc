// Exhaustive checks, by symbolic run, of the schedules whose buffers hold a part for every rank: gather, scatter,
// all-to-all, and the kinds with variable parts; every n up to 16, parts of many sizes, empty ones among them.

#include <gtest/gtest.h>

#include <span>

#include "collectives/core/schedule.h"
#include "tests/collectives/algorithms/symbolic_run.h"
#include "tests/collectives/harness/part_counts.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr size_t kElementBytes = 4;
constexpr size_t kSliceElements = 3;
constexpr int kRoundSlices = 4;

constexpr size_t kSizes[] = {0, 0, 1, 2, kSliceElements, kSliceElements + 1, 5 * kSliceElements, 40};

std::string FoldFrom(int first, int n) {
  std::string sum;
  for (int k = 0; k < n; ++k) sum += std::to_string((first + k) % n) + " ";
  return sum + "/";
}

void CheckOutput(const ScheduleParams& p, const SymbolicRun& run, const PartCounts& counts, int rank) {
  std::vector<std::string> expected;
  if (IsReduceScatter(p.kind)) expected.assign(counts[0][rank], FoldFrom((rank + 1) % p.nranks, p.nranks));
  for (int from = 0; from < p.nranks && !Reduces(p.kind); ++from) {
    const size_t begin = IsAllgather(p.kind) ? 0 : run.input_parts(from)[rank].begin;
    for (size_t i = 0; i < counts[from][rank]; ++i)
      expected.push_back(std::to_string(from) + ":" + std::to_string(begin + i) + " ");
  }
  ASSERT_EQ(run.output(rank), expected) << "rank " << rank;
}

struct LinkCase {
  SymbolicRun::LinkModel model;
  int slots;
  int window;
  int round_slices;
};

// The tightest links and windows that the rules of schedule.h allow, and the fewest slots of a small memory budget.
constexpr LinkCase kRingLinks[] = {
    {SymbolicRun::LinkModel::kSlots, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kRendezvous, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kInPlace, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kInPlace, 4, 8, 2},
    {SymbolicRun::LinkModel::kMixed, kRoundSlices + 1, 2 * kRoundSlices + 1, kRoundSlices},
};
constexpr LinkCase kDirectLinks[] = {
    {SymbolicRun::LinkModel::kSlots, 1, 2, 1},
    {SymbolicRun::LinkModel::kRendezvous, 1, 2, 1},
    {SymbolicRun::LinkModel::kInPlace, 1, 2, 1},
    {SymbolicRun::LinkModel::kMixed, 1, 2, 1},
};

void Check(ScheduleParams p, const PartCounts& counts) {
  const bool direct = p.algorithm == Algorithm::kDirect;
  for (const LinkCase& link : direct ? std::span<const LinkCase>(kDirectLinks) : kRingLinks) {
    p.round_slices = link.round_slices;
    SymbolicRun run(p, link.model, link.slots, link.window, counts);
    ASSERT_EQ(run.Run(false, 5), "") << "with " << link.slots << " slots";
    for (int rank = 0; rank < p.nranks; ++rank) {
      CheckOutput(p, run, counts, rank);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

class SchedulePartsTest : public testing::TestWithParam<int> {
 protected:
  ScheduleParams Params(CollectiveKind kind, Algorithm algorithm) const {
    ScheduleParams p;
    p.kind = kind;
    p.algorithm = algorithm;
    p.nranks = GetParam();
    p.element_bytes = kElementBytes;
    p.slice_bytes = kSliceElements * kElementBytes;
    return p;
  }

  void CheckMany(ScheduleParams p, unsigned seeds) {
    for (int root : {0, p.nranks / 2, p.nranks - 1}) {
      p.root = root;
      for (unsigned seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(testing::Message() << KindName(p.kind) << ", " << p.nranks << " ranks, root " << root
                                        << ", channels " << p.channels << ", seed " << seed);
        Check(p, MakeCounts(p.kind, p.nranks, root, seed, kSizes));
        if (HasFatalFailure() || (!HasRoot(p.kind) && root > 0)) return;
      }
    }
  }
};

TEST_P(SchedulePartsTest, DirectExchangesBringEveryPartToItsPlace) {
  for (CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kAlltoall,
                              CollectiveKind::kGatherv, CollectiveKind::kScatterv, CollectiveKind::kAlltoallv}) {
    CheckMany(Params(kind, Algorithm::kDirect), 8);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SchedulePartsTest, RingsCarryVariableParts) {
  for (CollectiveKind kind : {CollectiveKind::kAllgatherv, CollectiveKind::kReduceScatterv}) {
    for (int channels : {1, 2, 3}) {
      ScheduleParams p = Params(kind, Algorithm::kRing);
      p.channels = channels;
      CheckMany(p, 12);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SchedulePartsTest, OneHopCarriesVariableParts) {
  for (CollectiveKind kind : {CollectiveKind::kAllgatherv, CollectiveKind::kReduceScatterv}) {
    CheckMany(Params(kind, Algorithm::kOneHop), 12);
    if (HasFatalFailure()) return;
  }
}

TEST_P(SchedulePartsTest, OneHopBringsEveryPartToItsPlace) {
  for (CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kAlltoall}) {
    CheckMany(Params(kind, Algorithm::kOneHop), 8);
    if (HasFatalFailure()) return;
  }
}

TEST(SchedulePartsRuleTest, DirectExchangesNeedTwoStepsInFlight) {
  ScheduleParams p;
  p.kind = CollectiveKind::kAlltoall;
  p.algorithm = Algorithm::kDirect;
  p.nranks = 4;
  p.element_bytes = kElementBytes;
  p.slice_bytes = kSliceElements * kElementBytes;
  const PartCounts counts = MakeCounts(p.kind, p.nranks, 0, 3, kSizes);
  for (const auto model : {SymbolicRun::LinkModel::kRendezvous, SymbolicRun::LinkModel::kInPlace}) {
    SymbolicRun run(p, model, 1, 1, counts);
    EXPECT_EQ(run.Run(false, 1), "deadlock") << "the symbolic run cannot see deadlocks";
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SchedulePartsTest, testing::Range(1, kSanitized ? 8 : 17));

}  // namespace
}  // namespace annulus
