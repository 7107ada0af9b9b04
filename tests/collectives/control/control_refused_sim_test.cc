// The control plane in virtual time where nobody can connect to rank 0 again, as where only the rendezvous's port is
// let through, while all connections live. A paused rank 0 has not died.
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "tests/collectives/control/sim_control_stories.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kLimit = 60 * kSecond;
// Beyond a call's deadline rank 0 is waited for until Control::kVerdictGrace has passed.
constexpr Nanoseconds kPause = 1400 * kMillisecond;
constexpr Nanoseconds kLongPause = 4 * kSecond;

class ControlRefusedSimTest : public testing::TestWithParam<int> {};

TEST_P(ControlRefusedSimTest, APausedRankZeroIsWaitedForThoughItsDoorRefuses) {
  const int n = GetParam();
  for (const Story& story : Stories()) {
    if (story.culprit == 0) continue;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, seed " << seed);
      SimControlJob job(seed, n, {});
      for (int rank = 0; rank < n; ++rank) job.At(0, [&job, rank] { job.Open(rank); });
      job.At(kEntered, [&job] { job.RefuseDials(); });
      story.tell(&job);
      const Nanoseconds begin = story.reports_deadlines ? kCallDeadline - kMillisecond : kEntered;
      job.At(begin, [&job, &story] { job.Pause(0, story.reports_deadlines ? kPause : kLongPause); });
      job.Run(kLimit);
      EXPECT_LT(job.clock().now(), kLimit) << "hang";
      for (int rank = 0; rank < n; ++rank) {
        const std::optional<Verdict>& verdict = job.verdict(rank);
        const bool is_told = story.code != Code::kOk && rank != n - story.culprit;  // That one may have left.
        EXPECT_TRUE(verdict || !is_told) << "rank " << rank;
        if (!verdict) continue;
        EXPECT_TRUE(verdict->code == story.code || verdict->code == story.also)
            << "rank " << rank << ": " << verdict->message;
        EXPECT_EQ(verdict->rank, n - story.culprit) << "rank " << rank << ": " << verdict->message;
      }
      if (HasFailure()) return;
    }
  }
}

// It is a death where the connection has ended, or carries nothing; long before the call's deadline.
TEST_P(ControlRefusedSimTest, ADeathOfRankZeroIsOne) {
  const int n = GetParam();
  for (const bool is_silent : {false, true}) {
    SimControlJob job(1, n, {});
    std::vector<int> others;
    for (int rank = 0; rank < n; ++rank) job.At(0, [&job, rank] { job.Open(rank); });
    for (int rank = 1; rank < n; ++rank) others.push_back(rank);
    WorkAndLeave(&job, 30 * kSecond);
    if (is_silent) job.At(2 * kMillisecond, [&] { job.Cut(others, {.kind = SimCut::Kind::kForgotten}); });
    job.At(3 * kMillisecond, [&job] { job.Kill(0); });
    const Status broken(Code::kPeerLost, "the link broke", 0, ECONNRESET);
    job.At(4 * kMillisecond, [&] { job.Report(1, broken, Call{}, kLimit); });
    job.Run(kLimit);
    for (const int rank : others) {
      ASSERT_TRUE(job.verdict(rank)) << "rank " << rank;
      EXPECT_EQ(job.verdict(rank)->code, Code::kPeerLost) << job.verdict(rank)->message;
      EXPECT_EQ(job.verdict(rank)->rank, 0) << job.verdict(rank)->message;
      EXPECT_LT(job.verdict_at(rank), 5 * kSecond);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlRefusedSimTest, testing::Range(2, kSanitized ? 4 : 7));

}  // namespace
}  // namespace annulus
