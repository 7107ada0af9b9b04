// Real processes that are only slow: paused for less than their deadline, or throttled to a twentieth of the time, as
// the kernel's bandwidth control does it. No verdict names them; when another rank is killed meanwhile, all name that
// one.
#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "tests/faults/rank_processes.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr int kRanks = 4;
constexpr Nanoseconds kStart = 60 * kSecond;
constexpr Nanoseconds kPatience = 60 * kSecond;
// Longer than ranks wait for a rank 0 that does not respond, once a deadline has passed.
constexpr Nanoseconds kShortestPause = 1600 * kMillisecond;
constexpr Nanoseconds kLongestPause = 2500 * kMillisecond;
constexpr Nanoseconds kPeriod = 100 * kMillisecond;
constexpr Nanoseconds kShare = 5 * kMillisecond;

class SlowRanksTest : public testing::TestWithParam<const char*> {
 protected:
  void Begin() {
    ranks_ = std::make_unique<RankProcesses>(
        kRanks, RankProcesses::Environment{{"ANNULUS_TRANSPORT", GetParam()}, {"ANNULUS_TIMEOUT_MS", "30000"}},
        std::vector<std::string>{"until"});
    ASSERT_TRUE(ranks_->WaitForLine("ready", Now() + kStart)) << Outputs();
  }

  void Work(Nanoseconds time) {
    Child::Wait(
        ranks_->workers(), [] { return false; }, Now() + time);
  }

  void Pause(int rank, Nanoseconds time) {
    ranks_->Signal(rank, SIGSTOP);
    Work(time);
    ranks_->Signal(rank, SIGCONT);
  }

  void Throttle(int rank, Nanoseconds time) {
    for (const Nanoseconds end = Now() + time; Now() < end;) {
      Pause(rank, kPeriod - kShare);
      Work(kShare);
    }
  }

  std::string Outputs() const {
    std::string all;
    for (int rank = 0; rank < kRanks; ++rank) all += "rank " + std::to_string(rank) + ":\n" + ranks_->output(rank);
    return all;
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
      EXPECT_EQ(verdicts[rank].status, ANNULUS_PEER_LOST) << Outputs();
    }
  }

  std::unique_ptr<RankProcesses> ranks_;
};

TEST_P(SlowRanksTest, NobodyCallsThemDead) {
  const uint64_t rounds = Rounds(4, 300);
  for (uint64_t seed = 1; seed <= rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto within = [&random](Nanoseconds limit) {
      return static_cast<Nanoseconds>(random() % static_cast<uint64_t>(limit));
    };
    Begin();
    if (HasFatalFailure()) return;
    const int slow = static_cast<int>(seed % kRanks);
    const int killed = seed % 5 == 0 ? -1 : static_cast<int>((slow + 1 + random() % (kRanks - 1)) % kRanks);
    const bool pauses = slow == 0 || random() % 2 == 0;
    Work(within(50 * kMillisecond));
    if (pauses) ranks_->Signal(slow, SIGSTOP);
    if (killed >= 0) ranks_->Signal(killed, SIGKILL);
    pauses ? Pause(slow, kLongestPause - within(kLongestPause - kShortestPause)) : Throttle(slow, 1500 * kMillisecond);
    killed < 0 ? ExpectGoodEnd() : ExpectVerdictAbout(killed);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, SlowRanksTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
