// Seeded random stories for the arbiter: whatever is told in whatever order, one verdict comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "collectives/control/arbiter.h"
#include "collectives/control/arbiter_text.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 1000 * kSecond;

Call Allreduce(uint64_t sequence, uint64_t count) {
  Call call;
  call.sequence = sequence;
  call.kind = CollectiveKind::kAllreduce;
  call.count = count;
  return call;
}

// What a report may take, and the queries that fit in.
constexpr Nanoseconds kLongest = Arbiter::kAnswerWindow + Arbiter::kTieWindow;
constexpr int kMostQueries = 1 + Arbiter::kTieWindow / Arbiter::kTieInterval;

// Any events in any order: few queries, at most one verdict, none without a cause, and never later than the answer
// window and that of a tie.
TEST(ArbiterRandom, OneVerdictWhateverHappens) {
  for (uint64_t seed = 1; seed <= Rounds(10000, 2000000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
    const int n = 2 + below(4);
    Arbiter arbiter(n);
    Nanoseconds now = kStart;
    Nanoseconds first_report = kNoDeadline;
    std::optional<Verdict> seen;
    int queries = 0;
    for (int step = 0; step < 30; ++step) {
      now += below(40) * kMillisecond;
      while (arbiter.deadline() <= now) arbiter.Tick(now);
      const int rank = below(n);
      const uint64_t sequence = below(4);
      const Call call = sequence == 0 ? Call{} : Allreduce(sequence, below(8) == 0 ? 100 : 200);
      const Activity activity{sequence, below(2) == 0, sequence == 0 ? std::vector<Call>{} : std::vector<Call>{call}};
      constexpr Code kCodes[] = {Code::kTimeout, Code::kPeerLost, Code::kMismatch, Code::kProtocol, Code::kSystem};
      switch (below(24)) {
        case 0:
          arbiter.Died(rank);
          break;
        case 1:
          arbiter.Goodbye(rank, activity, now);
          break;
        case 2:
          arbiter.Settled(rank, AbortVerdict(rank), now);
          break;
        case 3:
          arbiter.Broken(rank, "noise", now);
          break;
        case 4:
        case 5:
        case 6:
        case 7:
          if (!arbiter.verdict()) first_report = std::min(first_report, now);
          arbiter.Report(rank, Status(kCodes[below(5)], "reason", below(n + 4) - 2, 0), call, now);
          break;
        default:
          arbiter.Answer(rank, activity, now);
      }
      queries += arbiter.TakeQuery();
      ASSERT_TRUE(!seen || arbiter.verdict() == seen);
      seen = arbiter.verdict();
      ASSERT_TRUE(seen || first_report == kNoDeadline || now < first_report + kLongest);
      if (!seen) continue;
      ASSERT_GE(seen->rank, 0);
      ASSERT_LT(seen->rank, n);
      ASSERT_LT(seen->peer, n);
      ASSERT_FALSE(seen->message.empty());
    }
    ASSERT_LE(queries, kMostQueries);
  }
}

}  // namespace
}  // namespace annulus
