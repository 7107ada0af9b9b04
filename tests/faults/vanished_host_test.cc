// A host that vanishes: in the middle of allreduces the cable between two hosts is cut, and no packet tells either
// side. Both ranks end, in time, with the same verdict: they have lost each other. Needs root, for network namespaces.
#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/faults/hosts.h"
#include "tests/faults/rank_processes.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 60 * kSecond;
constexpr Nanoseconds kDestroy = 5 * kSecond;  // With the time that rank 0 gives to a bad path.
// For a machine with more to do than processors. The simulator of tests/collectives/control asserts exact times.
constexpr Nanoseconds kSlack = 3 * kSecond;

class VanishedHostTest : public testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  void SetUp() override {
    std::string why;
    hosts_ = Hosts::Create(&why);
    if (hosts_ == nullptr) GTEST_SKIP() << why;
  }

  // Cuts the cable at the parameter's host; both ranks have a verdict within `limit`.
  void CutAndExpectVerdicts(int64_t timeout_ms, Nanoseconds limit) {
    RankProcesses ranks(2, {{"ANNULUS_TRANSPORT", "tcp"},
                            {"ANNULUS_RENDEZVOUS", Hosts::Address(0) + ":29500"},  // Nobody else is there.
                            {"ANNULUS_ENCRYPT", std::get<1>(GetParam())},
                            {"ANNULUS_TIMEOUT_MS", std::to_string(timeout_ms)}});
    for (int rank = 0; rank < 2; ++rank) {
      hosts_->Enter(rank);
      ranks.Start(rank, {"loop"});
    }
    ASSERT_TRUE(ranks.WaitForLine("ready", Now() + kStart)) << ranks.output(0) << ranks.output(1);
    hosts_->CutCable(std::get<0>(GetParam()));
    const Nanoseconds since = Now();
    const std::vector<WorkerVerdict> verdicts = ranks.Verdicts(-1, Now() + limit + kDestroy + 10 * kSecond);
    for (int rank = 0; rank < 2; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " wrote:\n" << ranks.output(rank));
      ASSERT_TRUE(verdicts[rank].valid) << "no verdict, or destroy did not return";
      EXPECT_EQ(verdicts[rank].status, ANNULUS_PEER_LOST);
      EXPECT_EQ(verdicts[rank].rank, 1);
      EXPECT_EQ(verdicts[rank].message, "rank 0 and rank 1 lost each other: nothing passes between them");
      EXPECT_LE(verdicts[rank].at - since, limit + kSlack);
      EXPECT_LE(verdicts[rank].ended_at - verdicts[rank].at, kDestroy + kSlack);
      std::printf("rank %d: status %d after %.2f s: %s\n", rank, verdicts[rank].status,
                  static_cast<double>(verdicts[rank].at - since) / kSecond, verdicts[rank].message.c_str());
    }
  }

  std::unique_ptr<Hosts> hosts_;
};

TEST_P(VanishedHostTest, IsNamedAtTheDeadline) {
  constexpr int64_t kTimeoutMs = 3000;
  // A rank that reports over the lost path waits longest: ControlMember::kPathGrace and Control::kVerdictGrace.
  CutAndExpectVerdicts(kTimeoutMs, kTimeoutMs * kMillisecond + 6 * kSecond);
}

// The kernel gives up data that nobody acknowledges after 15 s (docs/decisions/0014-no-tcp-user-timeout.md).
TEST_P(VanishedHostTest, IsNoticedLongBeforeALateDeadline) { CutAndExpectVerdicts(120000, 25 * kSecond); }

INSTANTIATE_TEST_SUITE_P(CutAt, VanishedHostTest,
                         testing::Combine(testing::Range(0, Hosts::kHosts), testing::Values("off", "required")),
                         [](const auto& info) {
                           return "Rank" + std::to_string(std::get<0>(info.param)) + "Encrypt_" +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace annulus
