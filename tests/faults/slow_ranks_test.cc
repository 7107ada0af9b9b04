// Real processes that are only slow: paused for less than their deadline, or throttled to a twentieth of a core by the
// kernel's bandwidth control. No verdict names them; when another rank is killed meanwhile, or does not come, all name
// that one, in the same words and in time.
#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "tests/faults/cpu_quota.h"
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
constexpr Nanoseconds kThrottled = 1500 * kMillisecond;
constexpr Nanoseconds kPeriod = 100 * kMillisecond;
constexpr Nanoseconds kShare = 5 * kMillisecond;
constexpr Nanoseconds kUntilThrottled = 300 * kMillisecond;  // By then a rank that works has used up its share.
constexpr Nanoseconds kVerdict = 2 * kSecond;                // Promised.
constexpr Nanoseconds kDeadline = 3 * kSecond;
// Over a deadline for which nothing else is to blame, a rank that is paused for a second is named (docs/failures.md).
constexpr Nanoseconds kPauseAtDeadline = 900 * kMillisecond;
// What a pause that ends just before the deadline leaves for the rest of the call, in which a busy machine works.
constexpr Nanoseconds kLeft = 900 * kMillisecond;

class SlowRanksTest : public testing::TestWithParam<const char*> {
 protected:
  // All work, but `missing`, which makes no further call once they are told to go.
  void Begin(Nanoseconds deadline, int missing = -1) {
    RankProcesses::Environment environment = {{"ANNULUS_TRANSPORT", GetParam()},
                                              {"ANNULUS_TIMEOUT_MS", std::to_string(deadline / kMillisecond)}};
    if (missing >= 0) environment["FAULT_AWAITS_INPUT"] = "1";
    ranks_ =
        std::make_unique<RankProcesses>(kRanks, environment, std::vector<std::string>{missing < 0 ? "until" : "loop"},
                                        missing, std::vector<std::string>{"idle"});
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

  // By the kernel, or where it may not be asked, by signals. Calls `meanwhile` once the rank is slow.
  template <class Act>
  void Throttle(int rank, Nanoseconds time, Act meanwhile) {
    std::string why;
    const std::unique_ptr<CpuQuota> quota = CpuQuota::Create(kPeriod, kShare, &why);
    if (quota != nullptr) {
      quota->Add(ranks_->worker(rank).pid());
      Work(kUntilThrottled);
      meanwhile();
      Work(time);
      throttled_periods_ += quota->throttled_periods();
      return;
    }
    if (!imitates_) std::printf("throttled by signals: %s\n", why.c_str());
    imitates_ = true;
    meanwhile();
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

  // All ranks but the culprit name it in the same words, in time after `since`; where rank `slow` is concerned, or
  // needed for a verdict, after `slow_until`.
  void ExpectVerdictAbout(int culprit, int status, Nanoseconds since, int slow, Nanoseconds slow_until) {
    const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(culprit, Now() + kPatience);
    Nanoseconds last = std::numeric_limits<Nanoseconds>::min();
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == culprit) continue;
      EXPECT_TRUE(verdicts[rank].valid) << Outputs();
      EXPECT_EQ(verdicts[rank].rank, culprit) << Outputs();
      EXPECT_EQ(verdicts[rank].status, status) << Outputs();
      EXPECT_EQ(verdicts[rank].message, verdicts[culprit == 0 ? 1 : 0].message) << Outputs();
      const bool waits = rank == slow || slow == 0;
      const Nanoseconds took = verdicts[rank].at - (waits ? std::max(since, slow_until) : since);
      EXPECT_LE(took, kVerdict) << "rank " << rank << " beside slow rank " << slow << "\n" << Outputs();
      last = std::max(last, took);
    }
    times_.push_back(last);
  }

  void TearDown() override {
    std::ranges::sort(times_);
    const auto seconds = [this](size_t index) { return static_cast<double>(times_[index]) / kSecond; };
    std::printf("%s: %d periods of 100 ms were throttled\n", GetParam(), throttled_periods_);
    if (times_.empty()) return;
    std::printf("the last verdict of %zu jobs came %.3f s, in the median, and %.3f s, at most, after it was due\n",
                times_.size(), seconds(times_.size() / 2), seconds(times_.size() - 1));
  }

  std::unique_ptr<RankProcesses> ranks_;
  std::vector<Nanoseconds> times_;  // For each job with a verdict: from when it was due until the last rank had it.
  int throttled_periods_ = 0;
  bool imitates_ = false;
};

Nanoseconds Within(std::mt19937_64* random, Nanoseconds limit) {
  return static_cast<Nanoseconds>((*random)() % static_cast<uint64_t>(limit));
}

TEST_P(SlowRanksTest, NobodyCallsThemDead) {
  const uint64_t rounds = Rounds(kSanitized ? 3 : 5, 300);
  int throttled = 0;
  for (uint64_t seed = 1; seed <= rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Begin(30 * kSecond);
    if (HasFatalFailure()) return;
    const int slow = static_cast<int>(seed % kRanks);
    const int killed = seed % 5 == 0 ? -1 : static_cast<int>((slow + 1 + random() % (kRanks - 1)) % kRanks);
    const bool pauses = random() % 2 == 0;
    throttled += !pauses;
    Work(Within(&random, 50 * kMillisecond));
    Nanoseconds since = 0;
    const auto kill = [&] {
      since = Now();
      if (killed >= 0) ranks_->Signal(killed, SIGKILL);
    };
    if (pauses) {
      ranks_->Signal(slow, SIGSTOP);
      kill();
      Pause(slow, kLongestPause - Within(&random, kLongestPause - kShortestPause));
    } else {
      Throttle(slow, kThrottled, kill);
    }
    killed < 0 ? ExpectGoodEnd() : ExpectVerdictAbout(killed, ANNULUS_PEER_LOST, since, slow, Now());
  }
  EXPECT_TRUE(throttled == 0 || imitates_ || throttled_periods_ > 0);
}

// A rank is paused from the midst of a call until just before its deadline, or for any time up to that. In every third
// round another one is killed meanwhile. Who is killed is named, and no other.
TEST_P(SlowRanksTest, APauseUpToTheDeadlineIsNoFailure) {
  const uint64_t rounds = Rounds(3, 60);
  for (uint64_t seed = 1; seed <= rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Begin(kDeadline);
    if (HasFatalFailure()) return;
    const int slow = static_cast<int>(random() % kRanks);
    const int killed = seed % 3 != 0 ? -1 : static_cast<int>((slow + 1 + random() % (kRanks - 1)) % kRanks);
    const Nanoseconds pause = kDeadline - kLeft - (random() % 2 == 0 ? 0 : Within(&random, kDeadline - 2 * kLeft));
    Work(Within(&random, 50 * kMillisecond));
    ranks_->Signal(slow, SIGSTOP);
    const Nanoseconds since = Now();
    if (killed >= 0) ranks_->Signal(killed, SIGKILL);
    Pause(slow, pause);
    killed < 0 ? ExpectGoodEnd() : ExpectVerdictAbout(killed, ANNULUS_PEER_LOST, since, slow, Now());
  }
}

TEST_P(SlowRanksTest, WhoeverIsMissingAtTheDeadlineIsNamedAndNotThem) {
  const uint64_t rounds = Rounds(kSanitized ? 2 : 4, 100);
  for (uint64_t seed = 1; seed <= rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int slow = static_cast<int>(seed % kRanks);
    const int missing = static_cast<int>((slow + 1 + random() % (kRanks - 1)) % kRanks);
    Begin(kDeadline, missing);
    if (HasFatalFailure()) return;
    const Nanoseconds since = Now();
    for (Child* worker : ranks_->workers()) worker->CloseInput();
    const Nanoseconds begin = kDeadline - Within(&random, kPauseAtDeadline);
    if (random() % 2 == 0) {
      Work(begin);
      Pause(slow, kPauseAtDeadline);
    } else {
      Throttle(slow, kDeadline + kThrottled, [] {});
    }
    ExpectVerdictAbout(missing, ANNULUS_TIMEOUT, since + kDeadline, slow, Now());
  }
}

// All wait for rank 0's word when all are paused at once, as where a whole machine is. That is no silence of rank 0: it
// runs again after the others, later than they would have waited without the pause.
TEST_P(SlowRanksTest, APauseOfAllIsNoSilenceOfRank0) {
  constexpr Nanoseconds kBefore = 500 * kMillisecond;
  Begin(kDeadline, /*missing=*/0);
  if (HasFatalFailure()) return;
  const Nanoseconds since = Now();
  for (Child* worker : ranks_->workers()) worker->CloseInput();
  Work(kDeadline - kBefore);
  ranks_->Signal(0, SIGSTOP);
  Work(kBefore + 300 * kMillisecond);  // They have reported that the deadline passed.
  for (int rank = 1; rank < kRanks; ++rank) ranks_->Signal(rank, SIGSTOP);
  Work(1000 * kMillisecond);
  for (int rank = 1; rank < kRanks; ++rank) ranks_->Signal(rank, SIGCONT);
  Work(600 * kMillisecond);
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(ranks_->worker(rank).CountLines("verdict "), 0) << Outputs();
  ranks_->Signal(0, SIGCONT);
  ExpectVerdictAbout(0, ANNULUS_TIMEOUT, since + kDeadline, 0, Now());
  EXPECT_NE(Outputs().find("rank 0 has not entered"), std::string::npos) << Outputs();
}

INSTANTIATE_TEST_SUITE_P(Transports, SlowRanksTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
