// The control plane in virtual time where a host leaves the network, for a while or for ever: all paths between its
// ranks and the others are cut at once. And where two ranks fail together, or one sends what cannot be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collectives/control/arbiter_text.h"
#include "tests/collectives/control/sim_control_stories.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kLimit = 60 * kSecond;
// A silent connection is noticed after 3 s; then it is made again, and the ranks are asked again.
constexpr Nanoseconds kLongestVerdict = 8 * kSecond;
// Where a path stays cut.
constexpr Nanoseconds kLongestLoss = 16 * kSecond;

Nanoseconds Within(std::mt19937_64* random, Nanoseconds limit) {
  return static_cast<Nanoseconds>((*random)() % static_cast<uint64_t>(limit));
}

// Around the failures, or around the deadlines.
Nanoseconds SomeTime(std::mt19937_64* random) {
  return ((*random)() % 2 == 0 ? 0 : kCallDeadline - kMillisecond) + Within(random, 5 * kMillisecond);
}

// A host that leaves, with `ranks` of them on it, among them perhaps rank 0.
struct Host {
  explicit Host(int nranks, std::mt19937_64* random) : has(nranks) {
    do {
      for (int rank = 0; rank < nranks; ++rank) has[rank] = (*random)() % 2 == 0;
    } while (std::ranges::count(has, true) == 0 || std::ranges::count(has, false) == 0);
    for (int rank = 1; rank < nranks; ++rank) {
      if (apart(rank)) cut.push_back(rank);
    }
  }
  // Whether the host stands between this rank and rank 0.
  bool apart(int rank) const { return has[rank] != has[0]; }

  std::vector<bool> has;
  std::vector<int> cut;  // The ranks whose paths are cut.
};

class ControlHostsSimTest : public testing::TestWithParam<int> {
 protected:
  static int Culprit(const Story& story, int nranks) { return story.culprit > 0 ? nranks - story.culprit : 0; }
  static void OpenAll(SimControlJob* job) {
    for (int rank = 0; rank < job->nranks(); ++rank) job->At(rank * 10 * kMicrosecond, [=] { job->Open(rank); });
  }
  // The verdicts of `ranks`; each has one, but the culprit may be gone without.
  static std::vector<Verdict> Told(const SimControlJob& job, const std::vector<int>& ranks, int culprit) {
    std::vector<Verdict> told;
    for (const int rank : ranks) {
      const bool gone = rank == culprit && job.closed(rank);
      EXPECT_TRUE(job.verdict(rank) || gone) << "rank " << rank;
      if (job.verdict(rank)) told.push_back(*job.verdict(rank));
    }
    return told;
  }
  static Nanoseconds LastVerdict(const SimControlJob& job) {
    Nanoseconds last = 0;
    for (int rank = 0; rank < job.nranks(); ++rank) last = std::max(last, job.verdict_at(rank));
    return last;
  }
};

// Nobody is blamed for it, and all hear the same.
TEST_P(ControlHostsSimTest, AHostThatLeavesForAWhileChangesNoVerdict) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(3000, 100'000);
  std::vector<Nanoseconds> times;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1019 + n);
    const Story& story = Stories()[random() % Stories().size()];
    const Host host(n, &random);
    SimCut how;
    constexpr SimCut::Kind kKinds[] = {SimCut::Kind::kReset, SimCut::Kind::kSilence, SimCut::Kind::kForgotten,
                                       SimCut::Kind::kNoRoute};
    how.kind = kKinds[random() % std::size(kKinds)];
    how.first = static_cast<int>(random() % 2);
    how.duration = Within(&random, how.kind == SimCut::Kind::kReset ? 1100 * kMillisecond : 2 * kSecond);
    const Nanoseconds at = SomeTime(&random);
    const bool leaves = random() % 2 == 0;
    SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, seed " << seed << ", " << host.cut.size()
                                    << " paths cut as " << static_cast<int>(how.kind) << " at " << at << " ns for "
                                    << how.duration << " ns, leaves " << leaves);
    SimControlJob job(seed, n, {});
    job.set_leaves_at_verdict(leaves);
    OpenAll(&job);
    story.tell(&job);
    job.At(at, [&] { job.Cut(host.cut, how); });
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    const int culprit = Culprit(story, n);
    for (int rank = 0; rank < n; ++rank) {
      const std::optional<Verdict>& verdict = job.verdict(rank);
      if (story.code == Code::kOk) {
        EXPECT_FALSE(verdict) << "rank " << rank << ": " << verdict->message;
        EXPECT_TRUE(job.closed(rank)) << "rank " << rank;
        continue;
      }
      if (rank == culprit && !verdict && job.closed(rank)) continue;
      ASSERT_TRUE(verdict) << "rank " << rank;
      EXPECT_EQ(*verdict, job.verdict(0).value_or(Verdict{})) << "rank " << rank;
      EXPECT_EQ(verdict->rank, culprit) << "rank " << rank << ": " << verdict->message;
      EXPECT_TRUE(verdict->code == story.code || verdict->code == story.also) << verdict->message;
    }
    EXPECT_LE(LastVerdict(job), kLongestVerdict);
    if (story.code != Code::kOk) times.push_back(LastVerdict(job) - 2 * kMillisecond);
    if (HasFailure()) return;
  }
  std::printf("%d ranks: %s\n", n, TimesText(times).c_str());
}

// The ranks on rank 0's side agree: they name the culprit, or say that rank 0 and ranks that are cut off have lost each
// other. On the other side each says so of itself, or names the culprit where it had heard of it.
TEST_P(ControlHostsSimTest, AHostThatLeavesForEverIsNamedOnBothSides) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(3000, 100'000);
  std::vector<Nanoseconds> times = {0};
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1021 + n);
    const Story& story = Stories()[random() % Stories().size()];
    const Host host(n, &random);
    SimCut how;
    how.kind = random() % 2 == 0 ? SimCut::Kind::kSilence : SimCut::Kind::kNoRoute;
    how.duration = kNoDeadline;
    const Nanoseconds at = SomeTime(&random);
    SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, seed " << seed << ", " << host.cut.size()
                                    << " paths cut at " << at << " ns");
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    story.tell(&job);
    job.At(at, [&] { job.Cut(host.cut, how); });
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    if (story.code == Code::kOk) continue;
    const int culprit = Culprit(story, n);
    std::vector<int> near;
    for (int rank = 0; rank < n; ++rank) {
      if (!host.apart(rank)) near.push_back(rank);
    }
    const std::vector<Verdict> told = Told(job, near, culprit);
    for (const Verdict& verdict : told) {
      EXPECT_EQ(verdict, told.front()) << verdict.message << " / " << told.front().message;
      const bool names_apart = verdict.message.starts_with("rank 0 and rank") && verdict.code == Code::kPeerLost &&
                               std::ranges::count(host.cut, verdict.rank) > 0;
      EXPECT_TRUE(names_apart || verdict.rank == culprit) << verdict.message;
    }
    for (const int rank : host.cut) {
      for (const Verdict& verdict : Told(job, {rank}, culprit))
        EXPECT_TRUE(verdict == LostPathVerdict({rank}) || verdict.rank == culprit) << verdict.message;
    }
    times.push_back(LastVerdict(job) - at);
    if (HasFailure()) return;
  }
  EXPECT_LE(std::ranges::max(times), kLongestLoss);
  std::printf("%d ranks: %s\n", n, TimesText(times).c_str());
}

// Rank 0 and another one die within milliseconds. Where rank 0's verdict is lost on its way to some, survivors are told
// different ones of the two, but never a rank that lives.
TEST_P(ControlHostsSimTest, OfTwoDeathsRankZerosAmongThemOneIsNamed) {
  const int n = GetParam();
  if (n < 3) GTEST_SKIP() << "nobody survives";
  const uint64_t rounds = Rounds(3000, 100'000);
  uint64_t differ = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(testing::Message() << n << " ranks, seed " << seed);
    std::mt19937_64 random(seed * 1031 + n);
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    job.At(2 * kMillisecond, [&] { job.Kill(n - 1); });
    for (int rank = 0; rank + 1 < n; ++rank) {
      const Status broken(Code::kPeerLost, "the link broke", n - 1, 104);
      job.At(2 * kMillisecond + Within(&random, 4 * kMillisecond),
             [=, &job] { job.Report(rank, broken, {}, kSecond); });
    }
    job.At(2 * kMillisecond + Within(&random, 4 * kMillisecond), [&] { job.Kill(0); });
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    std::vector<int> survivors;
    for (int rank = 1; rank + 1 < n; ++rank) survivors.push_back(rank);
    const std::vector<Verdict> told = Told(job, survivors, n - 1);
    for (const Verdict& verdict : told) {
      EXPECT_EQ(verdict.code, Code::kPeerLost) << verdict.message;
      EXPECT_TRUE(verdict.rank == 0 || verdict.rank == n - 1) << verdict.message;
    }
    differ += std::ranges::any_of(told, [&](const Verdict& verdict) { return verdict.rank != told.front().rank; });
    EXPECT_LE(LastVerdict(job), 2 * kSecond);
    if (HasFailure()) return;
  }
  std::printf("%d ranks: survivors told different ones in %llu of %llu\n", n, static_cast<unsigned long long>(differ),
              static_cast<unsigned long long>(rounds));
}

// Two ranks die, often in the same turn of rank 0, in an orderly way or, where a question is on its way to them, by
// resets. The verdict names one of them; the loss of the other is told to all as well, whose new communicators may wait
// for it.
TEST_P(ControlHostsSimTest, OfTwoRanksThatDieTogetherBothLossesAreTold) {
  const int n = GetParam();
  if (n < 3) GTEST_SKIP() << "there is only one that may die";
  const uint64_t rounds = Rounds(1000, 100'000);
  uint64_t together = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1039 + n);
    const bool by_reset = random() % 2 == 0;
    const Nanoseconds apart = random() % 2 == 0 ? 0 : Within(&random, 3 * kMillisecond);
    SCOPED_TRACE(testing::Message() << n << " ranks, seed " << seed << ", " << apart << " ns apart"
                                    << (by_reset ? ", by resets" : ""));
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    const Nanoseconds at = 2 * kMillisecond;
    const Status broken(Code::kPeerLost, "the link broke", n - 1, 104);
    if (by_reset) job.At(at, [&] { job.Report(0, broken, {}, kSecond); });
    job.At(at + kMicrosecond, [&] { job.Kill(n - 1); });
    job.At(at + kMicrosecond + apart, [&] { job.Kill(n - 2); });
    job.Run(kLimit);
    for (int rank = 0; rank < n - 2; ++rank) {
      std::vector<int> lost;
      for (const Verdict& verdict : job.told(rank)) {
        if (verdict.code == Code::kPeerLost) lost.push_back(verdict.rank);
      }
      std::ranges::sort(lost);
      EXPECT_EQ(lost, (std::vector<int>{n - 2, n - 1})) << "rank " << rank;
    }
    together += apart == 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(together * 4, rounds);
}

// Rank 0 is stopped beyond the deadline while another one dies, or while a control connection is reset. The others say
// without it that it does not respond; when it runs again it learns of that and of the death at the same moment, and
// says what they say.
TEST_P(ControlHostsSimTest, ARankZeroThatWasStoppedSaysWhatTheOthersHaveSaid) {
  const int n = GetParam();
  if (n < 3) GTEST_SKIP() << "nobody survives";
  const uint64_t rounds = Rounds(3000, 100'000);
  uint64_t named = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    const bool resets = seed % 2 == 0;                      // The control connection of one of the others, meanwhile.
    const bool dies = !resets || (seed % 4 == 0 && n > 3);  // Somebody else must be able to tell rank 0.
    const int last = dies ? n - 2 : n - 1;                  // The last survivor.
    SCOPED_TRACE(testing::Message() << n << " ranks, seed " << seed << (resets ? ", a reset" : "")
                                    << (dies ? ", a death" : ""));
    std::mt19937_64 random(seed * 1033 + n);
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    if (dies) job.At(kMillisecond + Within(&random, 2 * kMillisecond), [&] { job.Kill(n - 1); });
    for (int rank = 0; rank <= last; ++rank) {
      const Nanoseconds at = kCallDeadline + Within(&random, kMillisecond);
      const Status failure(Code::kTimeout, "the collective did not finish before its deadline");
      job.At(at, [&job, rank, failure] { job.Report(rank, failure, {}, kCallDeadline); });
    }
    const Nanoseconds stop = Within(&random, 3 * kMillisecond);
    const Nanoseconds time = 1900 * kMillisecond + Within(&random, (resets ? 10 : 3) * kSecond);
    job.At(stop, [&] { job.Pause(0, time); });
    const int cut_off = 1 + static_cast<int>(random() % last);
    const Nanoseconds reset_at = stop + Within(&random, time);
    if (resets) job.At(reset_at, [&] { job.Cut({cut_off}, {.kind = SimCut::Kind::kReset}); });
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    for (int rank = 0; rank <= last; ++rank) {
      const Verdict verdict = job.verdict(rank).value_or(Verdict{});
      EXPECT_EQ(verdict, job.verdict(0).value_or(Verdict{})) << "rank " << rank << ": " << verdict.message;
      EXPECT_TRUE(verdict.rank == 0 || (dies && verdict.rank == n - 1)) << verdict.message;
    }
    named += job.verdict(0) && job.verdict(0)->rank == 0;
    if (HasFailure()) return;
  }
  EXPECT_GT(named, 0U);
}

// Rank 0 is killed behind a path that is silent. Its rank finds nobody at the door when the path carries again, before
// rank 0 could have given it up: it says what all others say.
TEST_P(ControlHostsSimTest, ADeathOfRankZeroBehindASilenceIsADeath) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(1000, 100'000);
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1049 + n);
    const int cut_off = 1 + static_cast<int>(random() % (n - 1));
    SimCut how;
    how.kind = random() % 2 == 0 ? SimCut::Kind::kSilence : SimCut::Kind::kNoRoute;
    how.duration = 3 * kSecond + Within(&random, kSecond);
    SCOPED_TRACE(testing::Message() << n << " ranks, seed " << seed << ", path of rank " << cut_off << " silent for "
                                    << how.duration << " ns");
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    WorkAndLeave(&job, 30 * kSecond);
    const Nanoseconds begin = kEntered + Within(&random, 2 * kSecond);
    job.At(begin, [&] { job.Cut({cut_off}, how); });
    job.At(begin + 1 + Within(&random, how.duration), [&] { job.Kill(0); });
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    for (int rank = 1; rank < n; ++rank) {
      const Verdict verdict = job.verdict(rank).value_or(Verdict{});
      EXPECT_EQ(verdict, DeathVerdict(0)) << "rank " << rank << ": " << verdict.message;
    }
    if (HasFailure()) return;
  }
}

// A control connection is reset about the time at which rank 0 is stopped for a while. Its kernel accepts the attempts
// to connect that rank 0 will only read later: nobody is told of anything.
TEST_P(ControlHostsSimTest, AResetBesideAPausedRankZeroIsNoFailure) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(1000, 100'000);
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1051 + n);
    const int cut_off = 1 + static_cast<int>(random() % (n - 1));
    SimCut how;
    how.kind = SimCut::Kind::kReset;
    how.first = static_cast<int>(random() % 2);
    how.duration = Within(&random, kSecond);
    // Often rank 0 has just noticed the reset, and its pause ends when it has waited for long enough.
    const bool is_close = random() % 2 == 0;
    const Nanoseconds pause =
        is_close ? 1400 * kMillisecond + Within(&random, 400 * kMillisecond) : Within(&random, 20 * kSecond);
    const Nanoseconds begin = kEntered + Within(&random, 2 * kSecond);
    const Nanoseconds at = begin - kMillisecond + Within(&random, is_close ? kMillisecond : pause);
    SCOPED_TRACE(testing::Message() << n << " ranks, seed " << seed << ", path of rank " << cut_off << " reset "
                                    << at - begin << " ns into a pause of " << pause << " ns, end " << how.first
                                    << " first by " << how.duration << " ns");
    SimControlJob job(seed, n, {});
    OpenAll(&job);
    WorkAndLeave(&job, 40 * kSecond);
    job.At(begin, [&] { job.Pause(0, pause); });
    job.At(at, [&] { job.Cut({cut_off}, how); });
    job.Run(2 * kLimit);
    EXPECT_LT(job.clock().now(), 2 * kLimit) << "hang";
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_FALSE(job.verdict(rank)) << "rank " << rank << ": " << job.verdict(rank)->message;
      EXPECT_TRUE(job.closed(rank)) << "rank " << rank;
    }
    if (HasFailure()) return;
  }
}

// Each message of each story, garbled: one verdict, which names its sender or what the story is about. Where the word
// of a verdict is what cannot be read, those who gave it keep it: rank 0 and all others, or the rank that aborted.
TEST_P(ControlHostsSimTest, AMessageThatCannotBeReadIsItsSendersFaultOnAllRanks) {
  const int n = GetParam();
  uint64_t runs = 0;
  uint64_t named = 0;
  for (const Story& story : Stories()) {
    for (int sender = 1; sender < n; ++sender) {
      bool was_cut = true;
      for (int message = 0; was_cut; ++message) {
        SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, path of rank " << sender << ", message "
                                        << message);
        SimControlJob job(1, n, {{.rank = sender, .message = message, .kind = SimCut::Kind::kGarbled}});
        OpenAll(&job);
        story.tell(&job);
        job.Run(kLimit);
        EXPECT_LT(job.clock().now(), kLimit) << "hang";
        was_cut = job.cuts_made() > 0;
        ++runs;
        const int culprit = Culprit(story, n);
        std::optional<Verdict> first;
        for (int rank = 0; rank < n; ++rank) {
          const std::optional<Verdict>& verdict = job.verdict(rank);
          EXPECT_TRUE(verdict || story.code == Code::kOk || (rank == culprit && job.closed(rank))) << "rank " << rank;
          if (!verdict) continue;
          const bool tells_story = verdict->rank == culprit && verdict->code == story.code;
          const bool tells_sender = verdict->code == Code::kProtocol && (verdict->rank == 0 || verdict->rank == sender);
          EXPECT_TRUE(tells_story || tells_sender) << "rank " << rank << ": " << verdict->message;
          if (!first) first = verdict;
          // The word of a verdict that its speaker, or all others, have already.
          const bool lost_word = rank == sender && ((tells_sender && verdict->rank == 0 && first->code == story.code) ||
                                                    (tells_story && story.code == Code::kAborted));
          EXPECT_TRUE(lost_word || *verdict == *first) << verdict->message << " / " << first->message;
        }
        named += first && first->code == Code::kProtocol;
        EXPECT_LE(LastVerdict(job), kLongestVerdict);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(named, 0U);
  std::printf("%d ranks: %llu runs, the sender named in %llu\n", n, static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(named));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlHostsSimTest, testing::Range(2, kSanitized ? 5 : 7));

}  // namespace
}  // namespace annulus
