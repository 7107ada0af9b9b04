// The paths of the control connections fail while their processes live: connections are reset, packets are lost, for a
// while or for good. A job goes on, and the verdict on a real failure is the same on all ranks. Three ranks: 0 on one
// host, 1 and 2 on another. Needs root, for network namespaces.
#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/faults/hosts.h"
#include "tests/faults/rank_processes.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr int kPort = 29500;  // Nobody else is on these hosts.
constexpr Nanoseconds kStart = 60 * kSecond;
constexpr Nanoseconds kPatience = 60 * kSecond;

class ControlPathsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    hosts_ = Hosts::Create(&why);
    if (hosts_ == nullptr) GTEST_SKIP() << why;
    ranks_ = std::make_unique<RankProcesses>(
        kRanks, RankProcesses::Environment{{"ANNULUS_TRANSPORT", "tcp"},
                                           {"ANNULUS_LOG", "info"},
                                           {"ANNULUS_RENDEZVOUS", Hosts::Address(0) + ":29500"},
                                           {"ANNULUS_TIMEOUT_MS", "40000"}});
    for (int rank = 0; rank < kRanks; ++rank) {
      hosts_->Enter(rank == 0 ? 0 : 1);
      ranks_->Start(rank, {"until"});
    }
    ASSERT_TRUE(ranks_->WaitForLine("ready", Now() + kStart)) << Outputs();
  }

  // Lets the job run for that long.
  void Work(Nanoseconds time) {
    Child::Wait(
        ranks_->workers(), [] { return false; }, Now() + time);
  }

  void ExpectGoodEnd() {
    ranks_->worker(0).CloseInput();
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ranks_->worker(rank).ExitStatus(Now() + kPatience), 0) << Outputs();
      EXPECT_EQ(ranks_->worker(rank).CountLines("verdict "), 0) << Outputs();
    }
  }

  void ExpectVerdictAbout(int culprit) {
    const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(culprit, Now() + kPatience);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == culprit) continue;
      EXPECT_TRUE(verdicts[rank].valid) << Outputs();
      EXPECT_EQ(verdicts[rank].rank, culprit) << Outputs();
      EXPECT_EQ(verdicts[rank].message, verdicts[culprit == 0 ? 1 : 0].message) << Outputs();
    }
  }

  std::string Outputs() const {
    std::string all;
    for (int rank = 0; rank < kRanks; ++rank) all += "rank " + std::to_string(rank) + ":\n" + ranks_->output(rank);
    return all;
  }

  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<RankProcesses> ranks_;
};

TEST_F(ControlPathsTest, ResetsAreNoFailure) {
  hosts_->ResetConnections(1, kPort);
  Work(2 * kSecond);
  EXPECT_EQ(ranks_->worker(0).CountLines("came back"), 2) << Outputs();
  ExpectGoodEnd();
}

TEST_F(ControlPathsTest, ResetsBesideADeathLeaveOneVerdict) {
  hosts_->ResetConnections(0, kPort);
  ranks_->Signal(2, SIGKILL);
  ExpectVerdictAbout(2);
}

// The connections are given up after eight seconds, and others take their place.
TEST_F(ControlPathsTest, SilenceIsNoFailure) {
  if (!hosts_->LoseAnyPackets(0, kPort)) GTEST_SKIP() << "no packet filter";
  Work(13 * kSecond);
  EXPECT_EQ(ranks_->worker(0).CountLines("came back"), 2) << Outputs();
  ExpectGoodEnd();
}

// The report of rank 1 waits in its kernel for as long as the path is bad. Rank 0 seems silent, and is not.
TEST_F(ControlPathsTest, ALateReportBlamesNobody) {
  if (!hosts_->LoseAnyPackets(1, kPort)) GTEST_SKIP() << "no packet filter";
  ranks_->Signal(2, SIGKILL);
  Work(2 * kSecond);
  hosts_->LoseNoPackets(1);
  ExpectVerdictAbout(2);
}

TEST_F(ControlPathsTest, WhenAllPacketsAreLostForAWhileTheJobWaits) {
  if (!hosts_->LoseAnyPackets(1, 0)) GTEST_SKIP() << "no packet filter";
  Work(3 * kSecond);
  hosts_->LoseNoPackets(1);
  Work(kSecond);
  ExpectGoodEnd();
}

TEST_F(ControlPathsTest, ALinkThatComesBackIsNoFailure) {
  hosts_->CutCable(1);
  Work(2 * kSecond);
  hosts_->JoinCable(1);
  Work(kSecond);
  ExpectGoodEnd();
}

}  // namespace
}  // namespace annulus
