// Exhaustive checks of the schedules by symbolic run: every kind, every n up to 16, sizes around every boundary.
#include "collectives/core/schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "collectives/algorithms/ring/ring_schedule.h"
#include "tests/collectives/algorithms/symbolic_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using Element = SymbolicRun::Element;

Element FoldFrom(int first, int n) {
  Element sum;
  for (int k = 0; k < n; ++k) sum += std::to_string((first + k) % n) + " ";
  return sum + "/";
}

// What `rank`'s output must hold at element i; "" where the collective does not write.
Element Expected(const ScheduleParams& p, int rank, size_t i) {
  const int n = p.nranks;
  switch (p.kind) {
    case CollectiveKind::kAllreduce:
      for (int c = 0; c < n; ++c) {
        if (i < ChunkBegin(p.count, n, c) + ChunkElements(p.count, n, c)) return FoldFrom((c + 1) % n, n);
      }
      return "";
    case CollectiveKind::kReduceScatter:
      return FoldFrom((rank + 1) % n, n);
    case CollectiveKind::kAllgather:
      return std::to_string(i / p.count) + ":" + std::to_string(i % p.count) + " ";
    case CollectiveKind::kBroadcast:
      return std::to_string(p.root) + ":" + std::to_string(i) + " ";
    case CollectiveKind::kReduce:
      return rank == p.root ? FoldFrom((p.root + 1) % n, n) : "";
    default:
      return "";
  }
}

struct LinkCase {
  SymbolicRun::LinkModel model;
  int slots;
  int window;
  int round_slices;
};

void Check(const ScheduleParams& p, bool in_place, const LinkCase& link) {
  SCOPED_TRACE(testing::Message() << KindName(p.kind) << " n=" << p.nranks << " count=" << p.count
                                  << " slice=" << p.slice_bytes << " channels=" << p.channels << " root=" << p.root
                                  << " in_place=" << in_place << " algorithm=" << static_cast<int>(p.algorithm)
                                  << " slots=" << link.slots);
  SymbolicRun run(p, link.model, link.slots, link.window);
  ASSERT_EQ(run.Run(in_place, 17), "");
  for (int r = 0; r < p.nranks; ++r) {
    for (size_t i = 0; i < run.output(r).size(); ++i) {
      const Element expected = Expected(p, r, i);
      if (expected.empty()) {
        ASSERT_EQ(run.output(r)[i], in_place ? std::to_string(r) + " " : "poison");  // Untouched: not the root.
      } else {
        ASSERT_EQ(run.output(r)[i], expected) << "rank " << r << " element " << i;
      }
    }
  }
}

constexpr CollectiveKind kDataKinds[] = {CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter,
                                         CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
                                         CollectiveKind::kReduce};

void CheckAll(ScheduleParams p, const LinkCase& link) {
  for (CollectiveKind kind : kDataKinds) {
    p.kind = kind;
    const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
    const bool can_be_in_place = rooted || kind == CollectiveKind::kAllreduce;
    // Roots: the ends and the middle of the ring stand for all.
    for (int root : rooted ? std::set<int>{0, p.nranks / 2, p.nranks - 1} : std::set<int>{0}) {
      p.root = root;
      Check(p, false, link);
      if (can_be_in_place) Check(p, true, link);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

class ScheduleTest : public testing::TestWithParam<int> {};

constexpr int kRoundSlices = 4;
// The tightest links that the rules of schedule.h allow, and the fewest slots of a small memory budget.
constexpr LinkCase kTightLinks[] = {
    {SymbolicRun::LinkModel::kSlots, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kRendezvous, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kInPlace, kRoundSlices + 1, 2 * kRoundSlices, kRoundSlices},
    {SymbolicRun::LinkModel::kInPlace, 4, 8, 2},
    {SymbolicRun::LinkModel::kMixed, kRoundSlices + 1, 2 * kRoundSlices + 1, kRoundSlices},
};

bool HasInPlace(const LinkCase& link) {
  return link.model == SymbolicRun::LinkModel::kInPlace || link.model == SymbolicRun::LinkModel::kMixed;
}

TEST_P(ScheduleTest, RingFoldsEveryContributionOnceInTheDocumentedOrder) {
  ScheduleParams p;
  p.nranks = GetParam();
  p.element_bytes = 4;
  const size_t n = p.nranks;
  for (const LinkCase& link : kTightLinks) {
    p.round_slices = link.round_slices;
    for (int channels : {1, 2, 3}) {
      p.channels = channels;
      for (size_t slice_elements : {1, 3}) {
        // The links change nothing in what slices hold, and channels do not wait for each other.
        if (HasInPlace(link) && (slice_elements > 1 || channels > 1)) continue;
        p.slice_bytes = slice_elements * 4;
        // Empty, fewer elements than ranks, uneven chunks, one slice more or less than a round, several rounds.
        for (size_t count : {size_t{0}, size_t{1}, n - 1, n, n + 1, 4 * n * slice_elements - 1,
                             4 * n * slice_elements + 1, 9 * n * slice_elements + n / 2}) {
          if (count > 200 && channels == 3) continue;
          p.count = count;
          CheckAll(p, link);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(ScheduleTest, OneHopGivesTheSameFoldsAsTheRing) {
  ScheduleParams p;
  p.algorithm = Algorithm::kOneHop;
  p.nranks = GetParam();
  p.element_bytes = 8;
  for (const LinkCase& link : kTightLinks) {
    if (HasInPlace(link)) continue;  // As kSlots.
    for (size_t count : {0, 1, 2, 7, 16, 17, 40}) {
      p.count = count;
      CheckAll(p, link);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ScheduleTest, BarriersFinishAndLeaveNothingBehind) {
  ScheduleParams p;
  p.kind = CollectiveKind::kBarrier;
  p.nranks = GetParam();
  for (Algorithm algorithm : {Algorithm::kRing, Algorithm::kOneHop}) {
    p.algorithm = algorithm;
    for (const LinkCase& link : kTightLinks) Check(p, false, link);
  }
}

// A sanitizer looks at accesses to memory alone, for which so many ranks need not be tried. Of many ranks, those of the
// largest one hop.
std::vector<int> NumbersOfRanks() {
  std::vector<int> numbers = {1, 2, 3, 4, 5, 6};
  if (!kSanitized) numbers.insert(numbers.end(), {7, 8, 9, 10, 11, 16});
  return numbers;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ScheduleTest, testing::ValuesIn(NumbersOfRanks()));

TEST(ScheduleRuleTest, FewerSlotsThanTheRuleAsksForDeadlock) {
  ScheduleParams p;
  p.kind = CollectiveKind::kAllreduce;
  p.nranks = 4;
  p.count = 64;
  for (const LinkCase& link : kTightLinks) {
    p.round_slices = link.round_slices;
    SymbolicRun run(p, link.model, link.round_slices, link.window);
    EXPECT_EQ(run.Run(false, 1), "deadlock") << "the symbolic run cannot see deadlocks";
    SymbolicRun enough(p, link.model, link.round_slices + 1, link.window);
    EXPECT_EQ(enough.Run(false, 1), "");
  }
}

TEST(ScheduleRuleTest, TwoRoundsInFlightAreTooFewWhereKindsOfLinksMix) {
  ScheduleParams p;
  p.kind = CollectiveKind::kAllgather;
  p.nranks = 4;
  p.count = 64;
  p.round_slices = kRoundSlices;
  SymbolicRun run(p, SymbolicRun::LinkModel::kMixed, kRoundSlices + 1, 2 * kRoundSlices);
  EXPECT_EQ(run.Run(false, 1), "deadlock");
}

TEST(ScheduleRuleTest, ChunksDifferByAtMostOneElementAndCoverTheBuffer) {
  for (int n = 1; n <= 16; ++n) {
    for (size_t count = 0; count < 70; ++count) {
      size_t next = 0;
      for (int c = 0; c < n; ++c) {
        ASSERT_EQ(ChunkBegin(count, n, c), next);
        ASSERT_LE(ChunkElements(count, n, c) - count / n, 1u);
        next += ChunkElements(count, n, c);
      }
      ASSERT_EQ(next, count);
    }
  }
}

TEST(ScheduleRuleTest, LargeMessagesNeedNoMemoryAndNoOverflow) {
  ScheduleParams p;
  p.kind = CollectiveKind::kAllreduce;
  p.nranks = 1000;
  p.rank = 999;
  p.count = size_t{1} << 40;
  p.element_bytes = 8;
  p.slice_bytes = 256 * 1024;
  p.round_slices = 4;
  const RingSchedule schedule(p, 0);
  Step step;
  ASSERT_TRUE(schedule.At(schedule.size() - 1, &step));
  EXPECT_LE(step.output_offset + step.bytes, p.count * p.element_bytes);
}

}  // namespace
}  // namespace annulus
