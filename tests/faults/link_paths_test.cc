// The paths of the links fail while their processes live: connections are reset in the midst of allreduces, or their
// host is off the network for a while. The job goes on, with right sums. When a process dies meanwhile, the verdict
// comes as soon as without. Three ranks: 0 on one host, 1 and 2 on another. Needs root, for network namespaces.
#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/faults/spread_job.h"
#include "tests/transport/tcp/send_buffer.h"

namespace annulus {
namespace {

constexpr const char* kUnset = "-1";
constexpr int kUnusedPort = 9;

struct Links {
  const char* name;
  const char* sockets;
  const char* encrypt = "off";
};

class LinkPathsTest : public testing::TestWithParam<Links> {
 protected:
  void SetUp() override {
    std::string why;
    if (!job_.MakeHosts(&why)) GTEST_SKIP() << why;
  }

  void Start(const char* reconnect_ms, const std::string& action = "until", const char* timeout_ms = "60000") {
    RankProcesses::Environment environment = {{"ANNULUS_TCP_SOCKETS", GetParam().sockets},
                                              {"ANNULUS_ENCRYPT", GetParam().encrypt},
                                              {"ANNULUS_RECONNECT_MS", reconnect_ms},
                                              {"ANNULUS_TIMEOUT_MS", timeout_ms}};
    if (action != "until") environment["FAULT_AWAITS_INPUT"] = "1";
    job_.Start(environment, 1, action);
  }

  // What the ranks' counters say of connections that were made again, in all.
  struct Reconnects {
    uint64_t count = 0;
    uint64_t bytes_sent_again = 0;
  };
  Reconnects Counted() {
    Reconnects sum;
    for (int rank = 0; rank < SpreadJob::kRanks; ++rank) {
      Reconnects own;
      std::istringstream words(job_.ranks().worker(rank).After("reconnects"));
      EXPECT_TRUE(words >> own.count >> own.bytes_sent_again) << job_.Outputs();
      sum.count += own.count;
      sum.bytes_sent_again += own.bytes_sent_again;
    }
    return sum;
  }

  // Resets connections of these hosts in turn.
  void ExpectResetsToBeSurvived(const std::vector<int>& hosts) {
    for (size_t round = 0; round < 10; ++round) {
      job_.hosts().ResetOtherConnections(hosts[round % hosts.size()], SpreadJob::kPort);
      job_.Work(200 * kMillisecond);
    }
    job_.ExpectGoodEnd();
    EXPECT_GT(job_.ranks().worker(0).CountLines("was made again"), 0) << job_.Outputs();
    const Reconnects counted = Counted();
    EXPECT_GT(counted.count, 0u);
    EXPECT_LE(counted.bytes_sent_again, counted.count * MostUnacknowledged());
  }

  // All ranks have the same verdict. Returns when the last of them had it.
  Nanoseconds ExpectOneVerdict(int status, const std::string& words) {
    const std::vector<WorkerVerdict> verdicts = job_.ranks().Verdicts(-1, Now() + SpreadJob::kPatience / 2);
    Nanoseconds last = 0;
    for (const WorkerVerdict& verdict : verdicts) {
      EXPECT_TRUE(verdict.valid) << job_.Outputs();
      EXPECT_EQ(verdict.status, status) << job_.Outputs();
      EXPECT_EQ(verdict.message, verdicts[0].message);
      EXPECT_NE(verdict.message.find(words), std::string::npos) << verdict.message;
      last = std::max(last, verdict.at);
    }
    return last;
  }

  SpreadJob job_;
};

TEST_P(LinkPathsTest, ResetsAreNoFailure) {
  Start("60000");
  ExpectResetsToBeSurvived({0, 1});
}

// Rank 0's connections all go to the other host.
TEST_P(LinkPathsTest, UnlessTheUserSaysOtherwiseResetsBetweenHostsAreNone) {
  Start(kUnset);
  ExpectResetsToBeSurvived({0});
}

TEST_P(LinkPathsTest, WithoutResetsNothingIsCounted) {
  Start(kUnset);
  job_.Work(200 * kMillisecond);
  job_.ExpectGoodEnd();
  const Reconnects counted = Counted();
  EXPECT_EQ(counted.count, 0u);
  EXPECT_EQ(counted.bytes_sent_again, 0u);
}

TEST_P(LinkPathsTest, AHostThatIsAwayForFiveSecondsIsNoFailure) {
  Start("60000");
  job_.hosts().CutCable(1);
  job_.Work(5 * kSecond);
  job_.hosts().JoinCable(1);
  job_.Work(2 * kSecond);
  job_.ExpectGoodEnd();
}

// Long before the kernel gives the connections up.
TEST_P(LinkPathsTest, ConnectionsThatAreForgottenAreMadeAgain) {
  Start("60000");
  if (!job_.hosts().ForgetOtherConnections(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  job_.Work(6 * kSecond);
  job_.ExpectGoodEnd();
  EXPECT_GT(job_.ranks().worker(0).CountLines("was made again"), 0) << job_.Outputs();
  EXPECT_GT(Counted().count, 0u);
}

// The peer's kernel knows no such connection, and resets it.
TEST_P(LinkPathsTest, AChangedSourcePortIsNoFailure) {
  Start("60000");
  if (!job_.hosts().MoveOtherConnections(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter that rewrites";
  job_.Work(3 * kSecond);
  job_.ExpectGoodEnd();
  EXPECT_GT(job_.ranks().worker(0).CountLines("was made again"), 0) << job_.Outputs();
}

// Its call is over: the others have not got what it broadcast, and are not told that it has left.
TEST_P(LinkPathsTest, ARankThatLeavesSendsAgainWhatWasLost) {
  Start("60000", "last");
  if (!job_.hosts().ForgetOtherConnections(1, SpreadJob::kPort)) GTEST_SKIP() << "no packet filter";
  for (int rank = 0; rank < SpreadJob::kRanks; ++rank) job_.ranks().worker(rank).CloseInput();
  Child& first = job_.ranks().worker(0);
  ASSERT_TRUE(Child::Wait(
      job_.ranks().workers(), [&] { return first.HasLine("the last call is done"); }, Now() + SpreadJob::kPatience))
      << job_.Outputs();
  job_.Work(500 * kMillisecond);
  EXPECT_EQ(job_.ranks().worker(1).CountLines("the last call is done"), 0) << job_.Outputs();
  job_.hosts().ResetOtherConnections(1, SpreadJob::kPort);
  job_.ExpectGoodEnd();
  for (int rank = 0; rank < SpreadJob::kRanks; ++rank) {
    EXPECT_TRUE(job_.ranks().worker(rank).HasLine("the last call is done")) << job_.Outputs();
  }
}

TEST_P(LinkPathsTest, ADeathIsToldWhileConnectionsAreAway) {
  Start("60000");
  job_.hosts().ResetOtherConnections(1, SpreadJob::kPort);
  job_.ranks().Signal(2, SIGKILL);
  job_.ExpectVerdictAbout(2);
}

TEST_P(LinkPathsTest, WithoutTimeForItAResetIsAFailure) {
  Start("0");
  job_.hosts().ResetOtherConnections(1, SpreadJob::kPort);
  ExpectOneVerdict(ANNULUS_PEER_LOST, "the link between rank ");
}

// Control goes on, but the hosts let no connection in any more.
TEST_P(LinkPathsTest, APathThatDoesNotComeBackIsLostWhenTimeIsUp) {
  Start("2000");
  if (!job_.hosts().LosePortAndNewConnections(1, kUnusedPort)) GTEST_SKIP() << "no packet filter";
  const Nanoseconds begin = Now();
  job_.hosts().ResetOtherConnections(1, SpreadJob::kPort);
  const Nanoseconds at = ExpectOneVerdict(ANNULUS_PEER_LOST, "the link between rank ");
  EXPECT_GE(at - begin, 2 * kSecond);
  EXPECT_LT(at - begin, 20 * kSecond);
}

TEST_P(LinkPathsTest, TheCallsDeadlineMayComeFirst) {
  Start("60000", "until", "3000");
  if (!job_.hosts().LosePortAndNewConnections(1, kUnusedPort)) GTEST_SKIP() << "no packet filter";
  const Nanoseconds begin = Now();
  job_.hosts().ResetOtherConnections(1, SpreadJob::kPort);
  // One rank or two may be behind, since the resets meet calls of which the third has all it needs.
  EXPECT_LT(ExpectOneVerdict(ANNULUS_TIMEOUT, "rank") - begin, 20 * kSecond);
}

INSTANTIATE_TEST_SUITE_P(Sockets, LinkPathsTest,
                         testing::Values(Links{"Sockets1", "1"}, Links{"Sockets3", "3"},
                                         Links{"Encrypted", "2", "required"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
