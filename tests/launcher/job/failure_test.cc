// Which of several failed ranks was the first cause, from how they ended and whom their verdicts name.
#include "launcher/job/failure.h"

#include <gtest/gtest.h>

#include <csignal>

namespace annulus {
namespace {

constexpr int kExit1 = 1 << 8;

Failure Exited(int rank, int blames = Failure::kNobody) {
  return {.rank = rank, .wait_status = kExit1, .blames = blames};
}

TEST(FirstCauseTest, ARankThatVerdictsNameComesBeforeThoseThatLostIt) {
  EXPECT_EQ(FirstCause({Exited(0, 1), Exited(1)}).rank, 1);
  EXPECT_EQ(FirstCause({Exited(0, 2), Exited(1), Exited(2)}).rank, 2);
  EXPECT_EQ(FirstCause({Exited(3, 3), Exited(0, 3)}).rank, 3);  // Its own verdict names it too.
}

TEST(FirstCauseTest, WithoutTheNamedRankAFailureOfItsOwnIsTheCause) {
  EXPECT_EQ(FirstCause({Exited(0, Failure::kAnother), Exited(1)}).rank, 1);
  EXPECT_EQ(FirstCause({Exited(0, 2), Exited(1, 2)}).rank, 0);
}

TEST(FirstCauseTest, AKilledRankIsCertain) {
  Failure killed = Exited(2, 1);
  killed.wait_status = SIGKILL;
  EXPECT_EQ(FirstCause({Exited(0, 1), Exited(1), killed}).rank, 2);
}

TEST(AwaitsCulpritTest, OnlyWhileANamedRankRunsAndNobodyElseHasFailedByItself) {
  const auto all_run = [](int) { return true; };
  const auto none_runs = [](int) { return false; };
  EXPECT_TRUE(AwaitsCulprit({Exited(0, 1)}, all_run));
  EXPECT_FALSE(AwaitsCulprit({Exited(0, 1)}, none_runs));
  EXPECT_FALSE(AwaitsCulprit({Exited(0, 1), Exited(2)}, all_run));
  EXPECT_FALSE(AwaitsCulprit({Exited(0, Failure::kAnother)}, all_run));
  EXPECT_FALSE(AwaitsCulprit({Exited(0)}, all_run));
}

}  // namespace
}  // namespace annulus
