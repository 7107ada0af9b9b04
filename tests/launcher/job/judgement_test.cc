// When the failures of a job are judged: how long a cause may still show up, and whom that time is for.
#include "launcher/job/judgement.h"

#include <gtest/gtest.h>

namespace annulus {
namespace {

constexpr int kExit1 = 1 << 8;

const auto kNobodyRuns = [](int) { return false; };
const auto kAllRun = [](int) { return true; };

TEST(JudgementTest, WaitsUntilItsDeadlineForTheCause) {
  Judgement judgement(1000 * kSecond);
  EXPECT_TRUE(judgement.empty());
  EXPECT_EQ(judgement.deadline(), kNoDeadline);
  judgement.Add({.rank = 1, .wait_status = kExit1});
  const Deadline deadline = judgement.deadline();
  EXPECT_NE(deadline, kNoDeadline);
  EXPECT_FALSE(judgement.Due(true, kAllRun));
  judgement.Add({.rank = 2, .wait_status = 9});
  EXPECT_EQ(judgement.deadline(), deadline);  // Counts from the first failure.
  EXPECT_FALSE(judgement.Due(true, kAllRun));
  EXPECT_EQ(judgement.cause().rank, 2);
}

TEST(JudgementTest, JudgesAtItsDeadline) {
  Judgement judgement(0);
  judgement.Add({.rank = 1, .wait_status = kExit1});
  EXPECT_TRUE(judgement.Due(true, kAllRun));
}

TEST(JudgementTest, JudgesAtOnceWhenNobodyRuns) {
  Judgement judgement(1000 * kSecond);
  judgement.Add({.rank = 1, .wait_status = kExit1});
  EXPECT_TRUE(judgement.Due(false, kNobodyRuns));
}

TEST(JudgementTest, GivesACulpritThatStillRunsMoreTime) {
  Judgement judgement(0);
  judgement.Add({.rank = 1, .wait_status = kExit1, .blames = 0});
  const Nanoseconds before = Now();
  EXPECT_FALSE(judgement.Due(true, kAllRun));
  EXPECT_GE(judgement.deadline(), before + kCulpritTime);
  // Once it has ended there is nothing left to wait for.
  EXPECT_TRUE(judgement.Due(true, kNobodyRuns));
}

}  // namespace
}  // namespace annulus
