// The paths of the control connections fail while their processes live: connections are reset, packets are lost, for a
// while or for good. A job goes on, and the verdict on a real failure is the same on all ranks. Three ranks: 0 on one
// host, 1 and 2 on another. Needs root, for network namespaces.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/faults/spread_job.h"

namespace annulus {
namespace {

class ControlPathsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (!job_.MakeHosts(&why)) GTEST_SKIP() << why;
    job_.Start({{"ANNULUS_TIMEOUT_MS", "40000"}, {"ANNULUS_ENCRYPT", GetParam()}});
  }

  SpreadJob job_;
};

TEST_P(ControlPathsTest, ResetsAreNoFailure) {
  job_.hosts().ResetConnections(1, SpreadJob::kPort);
  job_.Work(2 * kSecond);
  EXPECT_EQ(job_.ranks().worker(0).CountLines("came back"), 2) << job_.Outputs();
  job_.ExpectGoodEnd();
}

TEST_P(ControlPathsTest, ResetsBesideADeathLeaveOneVerdict) {
  job_.hosts().ResetConnections(0, SpreadJob::kPort);
  job_.ranks().Signal(2, SIGKILL);
  job_.ExpectVerdictAbout(2);
}

// What rank 0's kernel accepts meanwhile, rank 0 reads when it runs again.
TEST_P(ControlPathsTest, ResetsWhileRankZeroIsPausedAreNoFailure) {
  job_.ranks().Signal(0, SIGSTOP);
  job_.hosts().ResetConnections(1, SpreadJob::kPort);
  job_.Work(8 * kSecond);
  job_.ranks().Signal(0, SIGCONT);
  job_.Work(2 * kSecond);
  // A rank that had to wait for too long has dialled again, and comes back twice.
  for (const char* line : {"rank 1 came back", "rank 2 came back"})
    EXPECT_GE(job_.ranks().worker(0).CountLines(line), 1) << job_.Outputs();
  job_.ExpectGoodEnd();
}

// The connections are given up after eight seconds, and others take their place.
TEST_P(ControlPathsTest, SilenceIsNoFailure) {
  if (!job_.hosts().LoseAnyPackets(0, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  job_.Work(13 * kSecond);
  EXPECT_EQ(job_.ranks().worker(0).CountLines("came back"), 2) << job_.Outputs();
  job_.ExpectGoodEnd();
}

// Rank 0 dies behind a path that is silent for so long that the kernels have given it up, and finds nobody at the door
// when it carries again. It is too early for rank 0 to have given up the other end.
TEST_P(ControlPathsTest, ADeathOfRankZeroBehindASilenceIsADeath) {
  if (!job_.hosts().LosePortAndNewConnections(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  job_.Work(3200 * kMillisecond);
  job_.ranks().Signal(0, SIGKILL);
  job_.hosts().LoseNoPackets(1);
  job_.ExpectVerdictAbout(0);
}

// The report of rank 1 waits in its kernel for as long as the path is bad. Rank 0 seems silent, and is not.
TEST_P(ControlPathsTest, ALateReportBlamesNobody) {
  if (!job_.hosts().LoseAnyPackets(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  job_.ranks().Signal(2, SIGKILL);
  job_.Work(2 * kSecond);
  job_.hosts().LoseNoPackets(1);
  job_.ExpectVerdictAbout(2);
}

TEST_P(ControlPathsTest, WhenAllPacketsAreLostForAWhileTheJobWaits) {
  if (!job_.hosts().LoseAnyPackets(1, 0)) GTEST_SKIP() << "no packet filter";
  job_.Work(3 * kSecond);
  job_.hosts().LoseNoPackets(1);
  job_.Work(kSecond);
  job_.ExpectGoodEnd();
}

TEST_P(ControlPathsTest, ALinkThatComesBackIsNoFailure) {
  job_.hosts().CutCable(1);
  job_.Work(2 * kSecond);
  job_.hosts().JoinCable(1);
  job_.Work(kSecond);
  job_.ExpectGoodEnd();
}

// Rank 0 hears rank 1, beside it, and not rank 2 any more: over control alone, whose door cannot be reached either, or
// over no path at all. Both ends of the path and rank 1 are told the same.
class LostPathTest : public testing::TestWithParam<const char*> {
 protected:
  void Start(int64_t timeout_ms) {
    std::string why;
    if (!job_.MakeHosts(&why)) GTEST_SKIP() << why;
    job_.Start({{"ANNULUS_TIMEOUT_MS", std::to_string(timeout_ms)}, {"ANNULUS_ENCRYPT", GetParam()}}, 2);
  }

  SpreadJob job_;
};

TEST_P(LostPathTest, AControlPathThatStaysSilentIsLostOnAllRanks) {
  Start(40000);
  if (IsSkipped()) return;
  if (!job_.hosts().LosePortAndNewConnections(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  job_.ExpectLostPath(2);
}

TEST_P(LostPathTest, APathOverWhichNothingPassesIsLostOnAllRanks) {
  Start(40000);
  if (IsSkipped()) return;
  if (!job_.hosts().LoseAnyPackets(1, 0)) GTEST_SKIP() << "no packet filter";
  job_.ExpectLostPath(2);
}

TEST_P(LostPathTest, ADeadlineThatPassesMeanwhileIsNotTheCause) {
  Start(3000);
  if (IsSkipped()) return;
  if (!job_.hosts().LoseAnyPackets(1, 0)) GTEST_SKIP() << "no packet filter";
  job_.ExpectLostPath(2);
}

INSTANTIATE_TEST_SUITE_P(Encryption, LostPathTest, testing::Values("off", "required"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Encryption, ControlPathsTest, testing::Values("off", "required"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
