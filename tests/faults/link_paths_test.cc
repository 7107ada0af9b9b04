// The paths of the links fail while their processes live: connections are reset in the midst of allreduces, or their
// host is off the network for a while. The job goes on, with right sums. When a process dies meanwhile, the verdict
// comes as soon as without. Three ranks: 0 on one host, 1 and 2 on another. Needs root, for network namespaces.
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

class LinkPathsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    hosts_ = Hosts::Create(&why);
    if (hosts_ == nullptr) GTEST_SKIP() << why;
  }

  void Start(const char* reconnect_ms) {
    ranks_ = std::make_unique<RankProcesses>(
        kRanks, RankProcesses::Environment{{"ANNULUS_TRANSPORT", "tcp"},
                                           {"ANNULUS_LOG", "info"},
                                           {"ANNULUS_TCP_SOCKETS", GetParam()},
                                           {"ANNULUS_RECONNECT_MS", reconnect_ms},
                                           {"ANNULUS_RENDEZVOUS", Hosts::Address(0) + ":29500"},
                                           {"ANNULUS_TIMEOUT_MS", "60000"}});
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

  std::string Outputs() const {
    std::string all;
    for (int rank = 0; rank < kRanks; ++rank) all += "rank " + std::to_string(rank) + ":\n" + ranks_->output(rank);
    return all;
  }

  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<RankProcesses> ranks_;
};

TEST_P(LinkPathsTest, ResetsAreNoFailure) {
  Start("60000");
  for (int round = 0; round < 10; ++round) {
    hosts_->ResetOtherConnections(round % 2, kPort);
    Work(200 * kMillisecond);
  }
  ExpectGoodEnd();
  EXPECT_GT(ranks_->worker(0).CountLines("was made again"), 0) << Outputs();
}

TEST_P(LinkPathsTest, AHostThatIsAwayForFiveSecondsIsNoFailure) {
  Start("60000");
  hosts_->CutCable(1);
  Work(5 * kSecond);
  hosts_->JoinCable(1);
  Work(2 * kSecond);
  ExpectGoodEnd();
}

TEST_P(LinkPathsTest, ADeathIsToldWhileConnectionsAreAway) {
  Start("60000");
  hosts_->ResetOtherConnections(1, kPort);
  ranks_->Signal(2, SIGKILL);
  const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(2, Now() + kPatience / 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(verdicts[rank].valid) << Outputs();
    EXPECT_EQ(verdicts[rank].rank, 2) << Outputs();
    EXPECT_EQ(verdicts[rank].message, verdicts[0].message);
  }
}

TEST_P(LinkPathsTest, WithoutTimeForItAResetIsAFailure) {
  Start("0");
  hosts_->ResetOtherConnections(1, kPort);
  const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(-1, Now() + kPatience / 2);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(verdicts[rank].valid) << Outputs();
    EXPECT_EQ(verdicts[rank].status, ANNULUS_PEER_LOST) << Outputs();
    EXPECT_EQ(verdicts[rank].message, verdicts[0].message);
  }
}

INSTANTIATE_TEST_SUITE_P(Sockets, LinkPathsTest, testing::Values("1", "3"),
                         [](const auto& info) { return "Sockets" + std::string(info.param); });

}  // namespace
}  // namespace annulus
