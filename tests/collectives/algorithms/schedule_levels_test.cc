// Exhaustive checks of the two-level schedule by symbolic run: every grid of up to 16 ranks, every placement of the
// ranks that matters, sizes around every boundary.

#include <gtest/gtest.h>

#include <random>

#include "collectives/core/schedule.h"
#include "tests/collectives/algorithms/symbolic_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

struct Shape {
  int hosts;
  int members;
};

enum class Placement { kBlocks, kRoundRobin, kShuffled };

std::vector<int> HostsOf(const Shape& shape, Placement placement) {
  std::vector<int> host_of;
  for (int r = 0; r < shape.hosts * shape.members; ++r)
    host_of.push_back(placement == Placement::kRoundRobin ? r % shape.hosts : r / shape.members);
  std::mt19937 random(5);
  if (placement == Placement::kShuffled) std::shuffle(host_of.begin(), host_of.end(), random);
  return host_of;
}

// The ranks by host and member, as docs/determinism.md numbers them.
std::vector<std::vector<int>> Numbered(const std::vector<int>& host_of) {
  std::vector<std::vector<int>> hosts;
  std::vector<int> seen;
  for (size_t r = 0; r < host_of.size(); ++r) {
    const auto at = std::find(seen.begin(), seen.end(), host_of[r]) - seen.begin();
    if (at == static_cast<ptrdiff_t>(seen.size())) {
      seen.push_back(host_of[r]);
      hosts.emplace_back();
    }
    hosts[at].push_back(static_cast<int>(r));
  }
  return hosts;
}

std::string Expected(const std::vector<std::vector<int>>& grid, uint32_t chunk) {
  const size_t hosts = grid.size();
  const size_t members = grid[0].size();
  std::string sum;
  for (size_t h = 1; h <= hosts; ++h) {
    for (size_t m = 1; m <= members; ++m)
      sum += std::to_string(grid[(chunk + h) % hosts][(chunk / hosts + m) % members]) + " ";
  }
  return sum + "/";
}

struct LinkCase {
  SymbolicRun::LinkModel model;
  int slots;
  int window;
};
constexpr int kRoundSlices = 2;
constexpr LinkCase kTightLinks[] = {
    {SymbolicRun::LinkModel::kSlots, kRoundSlices + 1, 2 * kRoundSlices},
    {SymbolicRun::LinkModel::kRendezvous, kRoundSlices + 1, 2 * kRoundSlices},
    {SymbolicRun::LinkModel::kInPlace, kRoundSlices + 1, 2 * kRoundSlices},
    {SymbolicRun::LinkModel::kMixed, kRoundSlices + 1, 2 * kRoundSlices + 1},
};

void Check(const ScheduleParams& p, const std::vector<int>& host_of, bool in_place, const LinkCase& link) {
  SCOPED_TRACE(testing::Message() << "n=" << p.nranks << " count=" << p.count << " slice=" << p.slice_bytes
                                  << " in_place=" << in_place << " model=" << static_cast<int>(link.model));
  SymbolicRun run(p, link.model, link.slots, link.window);
  run.SetHosts(host_of);
  ASSERT_EQ(run.Run(in_place, 17), "");
  const std::vector<std::vector<int>> grid = Numbered(host_of);
  for (int r = 0; r < p.nranks; ++r) {
    for (int c = 0; c < p.nranks; ++c) {
      const std::string expected = Expected(grid, c);
      for (size_t i = 0; i < ChunkElements(p.count, p.nranks, c); ++i)
        ASSERT_EQ(run.output(r)[ChunkBegin(p.count, p.nranks, c) + i], expected) << "rank " << r << " chunk " << c;
    }
  }
}

constexpr int kMostRanks = kSanitized ? 9 : 16;

class ScheduleLevelsTest : public testing::TestWithParam<std::tuple<int, int, Placement>> {};

TEST_P(ScheduleLevelsTest, EveryContributionIsFoldedOnceInTheDocumentedOrder) {
  const auto [hosts, members, placement] = GetParam();
  if (hosts * members > kMostRanks) return;
  const std::vector<int> host_of = HostsOf({hosts, members}, placement);
  ScheduleParams p;
  p.kind = CollectiveKind::kAllreduce;
  p.algorithm = Algorithm::kTwoLevel;
  p.nranks = hosts * members;
  p.element_bytes = 4;
  p.round_slices = kRoundSlices;
  const size_t n = p.nranks;
  for (const LinkCase& link : kTightLinks) {
    for (size_t slice_elements : {1, 3}) {
      p.slice_bytes = slice_elements * 4;
      const size_t segment = kRoundSlices * n * slice_elements;
      // Empty, fewer elements than ranks, uneven chunks; one slice more or less than one segment, than several.
      for (size_t count : {size_t{0}, size_t{1}, n - 1, n, n + 1, segment - 1, segment, segment + 1, 2 * segment + 1,
                           5 * segment - n}) {
        p.count = count;
        for (bool in_place : {false, true}) {
          Check(p, host_of, in_place, link);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, ScheduleLevelsTest,
                         testing::Combine(testing::Range(2, 9), testing::Range(2, 9),
                                          testing::Values(Placement::kBlocks, Placement::kRoundRobin,
                                                          Placement::kShuffled)));

TEST(ScheduleLevelsRuleTest, FewerSlotsThanTheRuleAsksForDeadlock) {
  ScheduleParams p;
  p.kind = CollectiveKind::kAllreduce;
  p.algorithm = Algorithm::kTwoLevel;
  p.nranks = 9;
  p.count = 9 * 16;
  p.round_slices = kRoundSlices;
  for (const LinkCase& link : kTightLinks) {
    SymbolicRun run(p, link.model, kRoundSlices, link.window);
    run.SetHosts(HostsOf({3, 3}, Placement::kBlocks));
    EXPECT_EQ(run.Run(false, 1), "deadlock") << "model " << static_cast<int>(link.model);
  }
}

TEST(HostGridTest, ThereIsNoneWithoutTwoHostsOfEquallyManyRanksTwoOrMore) {
  const auto exists = [](std::vector<int> host_of) { return HostGrid(host_of).exists(); };
  EXPECT_TRUE(exists({0, 0, 1, 1}));
  EXPECT_TRUE(exists({5, 2, 5, 2}));
  EXPECT_FALSE(exists({}));
  EXPECT_FALSE(exists({0}));
  EXPECT_FALSE(exists({0, 0, 0, 0}));
  EXPECT_FALSE(exists({0, 1, 2, 3}));
  EXPECT_FALSE(exists({0, 0, 1}));
  EXPECT_FALSE(exists({0, 0, 1, 1, 1}));
}

TEST(HostGridTest, RingsJoinTheRanksOfAHostAndThoseWithOnePlaceOnAllHosts) {
  const std::vector<int> host_of = {7, 3, 7, 3, 3, 7};  // Hosts {0, 2, 5} and {1, 3, 4}.
  const HostGrid grid(host_of);
  EXPECT_EQ(grid.hosts(), 2);
  EXPECT_EQ(grid.members(), 3);
  const RankRing inner = grid.Inner(5);
  EXPECT_EQ(inner.size, 3);
  EXPECT_EQ(inner.position, 2);
  EXPECT_EQ(inner.prev, 2);
  EXPECT_EQ(inner.next, 0);
  const RankRing outer = grid.Outer(5);
  EXPECT_EQ(outer.size, 2);
  EXPECT_EQ(outer.position, 0);
  EXPECT_EQ(outer.prev, 4);
  EXPECT_EQ(outer.next, 4);
}

}  // namespace
}  // namespace annulus
