// What --watch makes of the boards: culprits, laggards, and the texts.
#include "launcher/watch/watch_view.h"

#include <gtest/gtest.h>

#include "collectives/core/collective.h"

namespace annulus {
namespace {

RankView Inside(uint64_t sequence, int waiting_for = -1, Nanoseconds waits = 2 * kSecond) {
  RankView view;
  view.joined = true;
  view.inside = Board::kCollective;
  view.sequence = sequence;
  view.kind = static_cast<uint64_t>(CollectiveKind::kAllreduce);
  view.count = 1024;
  view.waiting_for = waiting_for;
  view.waits = waiting_for >= 0 ? waits : 0;
  view.waited = view.waits;
  return view;
}

RankView Outside(uint64_t sequence) {
  RankView view = Inside(sequence);
  view.inside = Board::kNothing;
  return view;
}

RankView Stopped(RankView view) {
  view.stopped = true;
  return view;
}

TEST(Culprit, IsAtTheEndOfTheChainOfWaits) {
  const std::vector<RankView> ranks{Inside(7, 3), Inside(7, 0), Outside(6), Inside(7, 2)};
  for (const int rank : {0, 1, 3}) EXPECT_EQ(CulpritOf(ranks, rank), 2) << rank;
  EXPECT_EQ(CulpritOf(ranks, 2), -1);
  EXPECT_EQ(Headline({0, ranks}), "3 ranks wait for rank 2, which is outside any call (its last: #6 allreduce 1024)");
}

// It was waiting itself when it was stopped: the chain does not go on behind it.
TEST(Culprit, IsTheRankThatIsStoppedThoughItWaited) {
  const std::vector<RankView> ranks{Inside(7, 2), Stopped(Inside(7, 0)), Inside(7, 1)};
  EXPECT_EQ(CulpritOf(ranks, 0), 1);
  EXPECT_EQ(CulpritOf(ranks, 2), 1);
  EXPECT_EQ(CulpritOf(ranks, 1), -1);
  EXPECT_EQ(Headline({0, ranks}), "2 ranks wait for rank 1, which is stopped (its last call: #7 allreduce 1024)");
}

TEST(Culprit, OfACircleIsTheOneWithTheLowestCall) {
  const std::vector<RankView> ranks{Inside(9, 1), Inside(8, 2), Inside(9, 0), Inside(9, 0)};
  for (const int rank : {0, 1, 2, 3}) EXPECT_EQ(CulpritOf(ranks, rank), 1) << rank;
}

TEST(Culprit, ShortWaitsAndRanksThatDoNotExistCountForNothing) {
  const std::vector<RankView> ranks{Inside(7, 1, kNotableWait - 1), Inside(7, 9), Inside(7)};
  for (const int rank : {0, 1, 2}) EXPECT_EQ(CulpritOf(ranks, rank), -1) << rank;
  EXPECT_EQ(Headline({0, ranks}), "");
}

TEST(Lagging, IsWhoHasNotReachedWhatOthersHadReachedBefore) {
  const WatchMoment before{kSecond, {Inside(5), Inside(8), Outside(8)}};
  const WatchMoment now{2 * kSecond, {Inside(6), Inside(8), Inside(11)}};
  EXPECT_TRUE(Lags(before, now, 0));
  EXPECT_FALSE(Lags(before, now, 1));
  EXPECT_FALSE(Lags(before, now, 2));
  EXPECT_FALSE(Lags(WatchMoment(), now, 0));
}

// Four ranks at call `sequence`, which have waited for so many milliseconds in total, none of them for long at once.
WatchMoment Waited(Nanoseconds at, uint64_t sequence, const std::vector<int>& waited_ms) {
  WatchMoment moment{at, {}};
  for (const int waited : waited_ms) {
    moment.ranks.push_back(Inside(sequence));
    moment.ranks.back().waited = waited * kMillisecond;
  }
  return moment;
}

TEST(LateEveryTime, IsTheRankThatHardlyWaitsWhileTheOthersDo) {
  const WatchMoment before = Waited(kSecond, 50, {100, 200, 30, 400});
  const WatchMoment now = Waited(2 * kSecond, 100, {550, 680, 60, 850});
  EXPECT_EQ(LateEveryTime(before, now), 2);
  EXPECT_EQ(Headline(now), "") << "no wait is long";
  const char* const habit = "rank 2 is late again and again: it waited 3 % of the time, most others 45 % or more";
  EXPECT_EQ(Habit(before, now), habit);
  const std::string line = WatchLine(before, now);
  EXPECT_TRUE(line.starts_with("watch 2 s: " + std::string(habit) + "; rank 0: ")) << line;
  EXPECT_TRUE(line.find("rank 2: #100 allreduce 1024, 0 B/s, 3 % waiting, inside, late;") != std::string::npos) << line;
  const std::vector<std::string> table = WatchTable(before, now, 24, 120);
  EXPECT_EQ(table[0], "-- 2 s: " + std::string(habit));
  EXPECT_NE(table[4].find("  <-- late"), std::string::npos) << table[4];
}

TEST(LateEveryTime, IsNobodyWhereAllWaitAlikeOrSomeoneStandsStill) {
  const WatchMoment before = Waited(kSecond, 50, {0, 0, 0});
  EXPECT_EQ(LateEveryTime(before, Waited(2 * kSecond, 100, {450, 400, 380})), -1);
  EXPECT_EQ(LateEveryTime(before, Waited(2 * kSecond, 100, {0, 99, 99})), -1) << "less than the share";
  EXPECT_EQ(LateEveryTime(before, Waited(2 * kSecond, 51, {0, 900, 900})), -1) << "once is no habit";
  WatchMoment leaves = Waited(2 * kSecond, 100, {0, 900, 900});
  EXPECT_EQ(LateEveryTime(before, leaves), 0);
  leaves.ranks[1].joined = false;
  EXPECT_EQ(LateEveryTime(before, leaves), -1);
  EXPECT_EQ(LateEveryTime(WatchMoment(), Waited(2 * kSecond, 100, {0, 900, 900})), -1);
}

WatchMoment Before() { return {kSecond, {Inside(5), Inside(5), RankView()}}; }

WatchMoment Later() {
  WatchMoment moment{3 * kSecond, {Inside(9, 1), Stopped(Inside(4)), RankView()}};
  moment.ranks[0].moved_bytes = 3'000'000'000;
  moment.ranks[0].waited = kSecond;
  return moment;
}

TEST(WatchLine, SaysItAllAtOnce) {
  EXPECT_EQ(WatchLine(Before(), Later()),
            "watch 3 s: 1 rank waits for rank 1, which is stopped (its last call: #4 allreduce 1024); rank 0: #9 "
            "allreduce 1024, 1.5 GB/s, 50 % waiting, waits 2.0 s for rank 1; rank 1: #4 allreduce 1024, 0 B/s, 0 % "
            "waiting, STOPPED, lags; rank 2: not joined");
}

TEST(WatchLine, OfManyRanksIsASummary) {
  WatchMoment moment{5 * kSecond, std::vector<RankView>(100, Inside(12))};
  moment.ranks[40] = Outside(11);
  EXPECT_EQ(WatchLine(WatchMoment(), moment), "watch 5 s; calls #11 to #12, 0 B/s");
}

TEST(WatchTable, FitsTheTerminalAndMarksWhoLags) {
  const std::vector<std::string> table = WatchTable(Before(), Later(), 24, 200);
  ASSERT_EQ(table.size(), 5u);
  EXPECT_EQ(table[0], "-- 3 s: " + Headline(Later()));
  EXPECT_NE(table[2].find("#9 allreduce 1024"), std::string::npos) << table[2];
  EXPECT_NE(table[2].find("waits 2.0 s for rank 1"), std::string::npos) << table[2];
  EXPECT_NE(table[3].find("STOPPED  <-- lags"), std::string::npos) << table[3];
  EXPECT_EQ(table[3].substr(0, 4), "\033[1m");
  const std::vector<std::string> narrow = WatchTable(Before(), Later(), 24, 80);
  EXPECT_NE(narrow[2].find("#9 allreduce 1024"), std::string::npos) << narrow[2];
  EXPECT_NE(narrow[2].find("waits 2.0 s for rank 1"), std::string::npos) << narrow[2];

  const WatchMoment many{kSecond, std::vector<RankView>(100, Inside(1))};
  const std::vector<std::string> cut = WatchTable(WatchMoment(), many, 10, 30);
  ASSERT_LT(cut.size(), 10u);
  EXPECT_EQ(cut.back(), "       and 94 more");
  for (const std::string& line : cut) EXPECT_LE(line.size(), 30u) << line;
}

// Whatever a rank writes on its board.
TEST(WatchTable, SurvivesNonsense) {
  RankView nonsense;
  nonsense.joined = true;
  nonsense.inside = nonsense.sequence = nonsense.kind = nonsense.count = nonsense.moved_bytes = UINT64_MAX;
  nonsense.waited = nonsense.waits = INT64_MAX;
  nonsense.waiting_for = 0;
  const WatchMoment moment{kSecond, {nonsense, nonsense}};
  EXPECT_EQ(WatchTable(Before(), moment, 24, 80).size(), 4u);
  EXPECT_FALSE(WatchLine(Before(), moment).empty());
}

}  // namespace
}  // namespace annulus
