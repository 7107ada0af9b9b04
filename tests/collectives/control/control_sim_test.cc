// The control plane in virtual time, with the path of each rank cut at every message that it carries: reset, silent for
// a while, silent for ever. One verdict for all, true, and in time; or none, where nothing failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collectives/control/arbiter_text.h"
#include "collectives/control/control.h"
#include "tests/collectives/control/sim_control_stories.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kForEver = kNoDeadline;
constexpr Nanoseconds kLimit = 60 * kSecond;
// A silent connection is noticed after 3 s; then it is made again, and the ranks are asked again.
constexpr Nanoseconds kLongestVerdict = 8 * kSecond;
constexpr Nanoseconds kUnnoticed = 1600 * kMillisecond;  // A cut: Arbiter::kAnswerWindow, and kTieWindow.
constexpr Nanoseconds kHarmlessSilence = 8 * kSecond;
constexpr Nanoseconds kLongestVerdictOfACut = 16 * kSecond;
constexpr Nanoseconds kLongestClosing = 18 * kSecond;  // Rank 0 waits so long for ranks that are away when it leaves.
constexpr Nanoseconds kLongestPause = 3 * kSecond;

struct Case {
  const Story* story;
  int nranks;
  bool leaves_at_verdict;
  std::vector<SimCut> cuts;
  uint64_t seed = 1;
};

std::string Text(const Case& one) {
  std::string text = std::string(one.story->name) + ", " + std::to_string(one.nranks) + " ranks, seed " +
                     std::to_string(one.seed) + (one.leaves_at_verdict ? ", they leave at once" : "");
  for (const SimCut& cut : one.cuts) {
    text += "; path of rank " + std::to_string(cut.rank);
    if (cut.kind == SimCut::Kind::kReset) text += " reset, end " + std::to_string(cut.first) + " first,";
    text += cut.kind == SimCut::Kind::kForgotten ? " forgotten" : cut.kind == SimCut::Kind::kSilence ? " silent" : "";
    text += cut.kind == SimCut::Kind::kNoRoute ? " without a route" : "";
    text += cut.duration == kForEver ? " for ever" : " " + std::to_string(cut.duration / kMillisecond) + " ms";
    text += (cut.after ? " after message " : " at message ") + std::to_string(cut.message);
  }
  return text;
}

// A cut that does not mend lasts for so long that rank 0 and that rank may be said to have lost each other.
bool IsSilence(const SimCut& cut) { return cut.kind == SimCut::Kind::kSilence || cut.kind == SimCut::Kind::kNoRoute; }
bool Mends(const SimCut& cut) { return !IsSilence(cut) || cut.duration <= 2 * kSecond; }

// Whether the cuts may delay an answer of `rank` for longer than answers are waited for: then it looks like a process
// that is stopped, or its own report comes too late.
bool MayLookStopped(const Case& one, int rank) {
  const auto delays = [rank](const SimCut& cut) { return cut.rank == rank && cut.kind != SimCut::Kind::kReset; };
  return std::count_if(one.cuts.begin(), one.cuts.end(), delays) > 1;
}

class Judgement {
 public:
  // Runs the case. Returns whether all its cuts were made.
  bool Run(const Case& one);

  uint64_t runs = 0;
  uint64_t verdicts = 0;
  uint64_t differ = 0;             // Runs in which a rank that was cut off was told something else than the others.
  std::vector<Nanoseconds> times;  // From the failure to the last rank's verdict.

 private:
  void Expect(const Case& one, const SimControlJob& job);
  void ExpectVerdict(const Case& one, const Verdict& verdict);
  void ExpectOfOneCutOff(const Case& one, const SimControlJob& job, const std::optional<Verdict>& others);
};

int CulpritOf(const Case& one) { return one.story->culprit > 0 ? one.nranks - one.story->culprit : 0; }

// The rank whose path stays cut; -1: none. Only cases of one cut have it.
int CutOffIn(const Case& one) { return one.cuts.size() == 1 && !Mends(one.cuts[0]) ? one.cuts[0].rank : -1; }

bool Judgement::Run(const Case& one) {
  SCOPED_TRACE(Text(one));
  SimControlJob job(one.seed, one.nranks, one.cuts);
  job.set_leaves_at_verdict(one.leaves_at_verdict);
  for (int rank = 0; rank < one.nranks; ++rank) job.At(rank * 10 * kMicrosecond, [&job, rank] { job.Open(rank); });
  one.story->tell(&job);
  job.Run(kLimit);
  Expect(one, job);
  ++runs;
  return job.cuts_made() >= static_cast<int>(one.cuts.size());
}

// One that is told to all who hear rank 0: what the story is about, or that a path is lost.
void Judgement::ExpectVerdict(const Case& one, const Verdict& verdict) {
  const int cut_off = CutOffIn(one);
  if (cut_off > 0 && verdict == LostPathVerdict({cut_off})) return;
  const bool by_silence = verdict.code == Code::kTimeout || verdict.code == Code::kPeerLost;
  if (by_silence && MayLookStopped(one, verdict.rank)) return;
  EXPECT_EQ(verdict.rank, CulpritOf(one)) << verdict.message;
  EXPECT_TRUE(verdict.code == one.story->code || verdict.code == one.story->also) << verdict.message;
}

// A rank that hears rank 0 no more says that they have lost each other, and so do all others. Only what rank 0 had
// judged before it could notice the cut, and what decides at once, is told to them and cannot be told to that rank; and
// a rank that aborts knows why.
void Judgement::ExpectOfOneCutOff(const Case& one, const SimControlJob& job, const std::optional<Verdict>& others) {
  const int cut_off = CutOffIn(one);
  const std::optional<Verdict>& own = job.verdict(cut_off);
  if (!own || !others || *own == *others) return;
  ++differ;
  const bool decides_at_once = one.story->code == Code::kAborted || one.story->code == Code::kPeerLost;
  if (cut_off == CulpritOf(one) && one.story->code == Code::kAborted) return;
  EXPECT_EQ(*own, LostPathVerdict({cut_off})) << own->message << " / " << others->message;
  EXPECT_TRUE(decides_at_once || job.verdict_at(0) <= job.cut_at() + kUnnoticed)
      << own->message << " / " << others->message;
}

void Judgement::Expect(const Case& one, const SimControlJob& job) {
  const Story& story = *one.story;
  const int culprit = CulpritOf(one);
  const int cut_off = CutOffIn(one);
  EXPECT_LT(const_cast<SimControlJob&>(job).clock().now(), kLimit) << "hang";
  std::optional<Verdict> first;
  Nanoseconds last_at = 0;
  for (int rank = 0; rank < one.nranks; ++rank) {
    const std::optional<Verdict>& verdict = job.verdict(rank);
    const bool gone = rank == culprit && !verdict && job.closed(rank);  // It died, or has left.
    if (gone) continue;
    if (story.code == Code::kOk) {
      EXPECT_FALSE(verdict) << "rank " << rank << ": " << verdict->message;
      EXPECT_TRUE(job.closed(rank)) << "rank " << rank;
      EXPECT_LE(job.closing_time(rank), cut_off < 0 ? 8 * kSecond : kLongestClosing) << "rank " << rank;
      continue;
    }
    EXPECT_TRUE(verdict) << "rank " << rank;
    if (!verdict) continue;
    last_at = std::max(last_at, job.verdict_at(rank));
    if (rank == cut_off) continue;
    if (!first) first = verdict;
    EXPECT_EQ(*verdict, *first) << "rank " << rank << ": " << verdict->message << " / " << first->message;
    ExpectVerdict(one, *verdict);
  }
  if (cut_off > 0) ExpectOfOneCutOff(one, job, first);
  if (cut_off < 0) {
    EXPECT_LE(last_at, kLongestVerdict);
  }
  if (first) {
    ++verdicts;
    times.push_back(last_at - 2 * kMillisecond);
  }
}

// All ways to cut the path of `rank` at one message.
std::vector<SimCut> WaysToCut(int rank, int message) {
  std::vector<SimCut> ways;
  for (const bool after : {false, true}) {
    for (const int first : {0, 1}) {
      for (const Nanoseconds lag : {Nanoseconds{0}, 1100 * kMillisecond}) {
        ways.push_back({rank, message, after, SimCut::Kind::kReset, lag, first});
      }
    }
    ways.push_back({rank, message, after, SimCut::Kind::kForgotten, 0, 0});
    for (const Nanoseconds silence : {500 * kMillisecond, 2 * kSecond, 5 * kSecond, 10 * kSecond, kForEver}) {
      ways.push_back({rank, message, after, SimCut::Kind::kSilence, silence, 0});
    }
    for (const Nanoseconds silence : {2 * kSecond, kForEver}) {
      ways.push_back({rank, message, after, SimCut::Kind::kNoRoute, silence, 0});
    }
  }
  return ways;
}

Nanoseconds Within(std::mt19937_64* random, Nanoseconds limit) {
  return static_cast<Nanoseconds>((*random)() % static_cast<uint64_t>(limit));
}

class ControlSimTest : public testing::TestWithParam<int> {};

TEST_P(ControlSimTest, OneVerdictWhereverOnePathIsCut) {
  const int n = GetParam();
  Judgement judgement;
  for (const Story& story : Stories()) {
    for (const bool leaves : {false, true}) {
      for (int rank = 1; rank < n; ++rank) {
        bool was_cut = true;
        for (int message = 0; was_cut; ++message) {
          was_cut = false;
          for (const SimCut& cut : WaysToCut(rank, message)) {
            was_cut |= judgement.Run({&story, n, leaves, {cut}});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  std::printf("%d ranks: %llu runs, %llu verdicts, in %llu a rank that was cut off was told another; %s\n", n,
              static_cast<unsigned long long>(judgement.runs), static_cast<unsigned long long>(judgement.verdicts),
              static_cast<unsigned long long>(judgement.differ), TimesText(judgement.times).c_str());
}

// Nothing fails in a long call, but one path is silent meanwhile. For up to eight seconds nobody is told of it; where
// it stays silent, both ends and everybody else are told the same: its two ends have lost each other.
TEST_P(ControlSimTest, ASilenceInALongCallIsNoFailureForEightSeconds) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(200, 20'000);
  std::vector<Nanoseconds> times;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1019 + n);
    const int cut_off = 1 + static_cast<int>(random() % (n - 1));
    const bool for_ever = seed % 4 == 0;
    SimCut how;
    how.kind = random() % 2 == 0 ? SimCut::Kind::kSilence : SimCut::Kind::kNoRoute;
    how.duration = for_ever ? kForEver : 2 * kSecond + Within(&random, kHarmlessSilence - 2 * kSecond);
    SimControlJob job(seed, n, {});
    for (int rank = 0; rank < n; ++rank) job.At(0, [&job, rank] { job.Open(rank); });
    WorkAndLeave(&job, 30 * kSecond);
    const Nanoseconds begin = kEntered + Within(&random, 10 * kSecond);
    job.At(begin, [&] { job.Cut({cut_off}, how); });
    job.Run(2 * kLimit);
    for (int rank = 0; rank < n; ++rank) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << n << " ranks, path of rank " << cut_off
                                      << " silent for " << how.duration / kMillisecond << " ms, as rank " << rank
                                      << " saw it");
      const std::optional<Verdict>& verdict = job.verdict(rank);
      EXPECT_TRUE(job.closed(rank));
      EXPECT_LE(job.closing_time(rank), kLongestClosing);
      EXPECT_EQ(verdict.has_value(), for_ever) << (verdict ? verdict->message : "");
      if (!verdict) continue;
      EXPECT_EQ(*verdict, LostPathVerdict({cut_off})) << verdict->message;
      times.push_back(job.verdict_at(rank) - begin);
      EXPECT_LE(times.back(), kLongestVerdictOfACut);
    }
    if (HasFailure()) return;
  }
  std::printf("%d ranks: %s\n", n, TimesText(times).c_str());
}

SimCut RandomCut(int nranks, std::mt19937_64* random) {
  SimCut cut;
  cut.rank = 1 + static_cast<int>((*random)() % (nranks - 1));
  cut.message = static_cast<int>((*random)() % 8);
  cut.after = (*random)() % 2 == 0;
  constexpr SimCut::Kind kKinds[] = {SimCut::Kind::kReset, SimCut::Kind::kSilence, SimCut::Kind::kForgotten,
                                     SimCut::Kind::kNoRoute};
  cut.kind = kKinds[(*random)() % std::size(kKinds)];
  cut.first = static_cast<int>((*random)() % 2);
  // Resets reach one end at once.
  if (IsSilence(cut)) cut.duration = Within(random, 2 * kSecond);
  return cut;
}

// Two, of any paths, at any messages.
TEST_P(ControlSimTest, OneVerdictWhateverTwoCuts) {
  const int n = GetParam();
  Judgement judgement;
  const uint64_t rounds = Rounds(1500, 100'000);
  uint64_t both = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1009 + n);
    const Story& story = Stories()[random() % Stories().size()];
    Case one{&story, n, random() % 2 == 0, {RandomCut(n, &random), RandomCut(n, &random)}, seed};
    // What one path loses may add up. A reset with a silence after it looks like a killed process
    // (ControlJudge::kResetGrace).
    for (SimCut& cut : one.cuts) {
      if (one.cuts[0].rank == one.cuts[1].rank && IsSilence(cut)) cut.duration %= 700 * kMillisecond;
    }
    both += judgement.Run(one);
    if (HasFailure()) return;
  }
  EXPECT_GT(both * 10, rounds) << "too few of the cuts were made for the test to mean something";
  std::printf("%d ranks: %s\n", n, TimesText(judgement.times).c_str());
}

// Processes that are stopped for a while, rank 0 among them, beside one that fails: everybody names that one. The
// pauses begin where the failure, the questions or the answers are. One control connection is reset about then; its
// rank is paused for less than rank 0 waits for it.
TEST_P(ControlSimTest, NobodyBlamesARankThatIsOnlyPaused) {
  const int n = GetParam();
  const uint64_t rounds = Rounds(3000, 100'000);
  std::vector<Nanoseconds> times = {0};
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed * 1013 + n);
    const Story& story = Stories()[random() % Stories().size()];
    SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, seed " << seed);
    const int culprit = story.culprit > 0 ? n - story.culprit : 0;
    SimControlJob job(seed, n, {});
    for (int rank = 0; rank < n; ++rank) job.At(0, [&job, rank] { job.Open(rank); });
    story.tell(&job);
    const int cut_off = 1 + static_cast<int>(random() % (n - 1));
    const Nanoseconds reset_at = kEntered + Within(&random, 2 * kCallDeadline);
    job.At(reset_at, [&] { job.Cut({cut_off}, {.kind = SimCut::Kind::kReset}); });
    Nanoseconds awake_at = 0;
    for (uint64_t pauses = 1 + random() % 2; pauses > 0; --pauses) {
      const int rank = static_cast<int>(random() % n);
      if (rank == culprit && story.code != Code::kOk) continue;
      const Nanoseconds begin = (random() % 2 == 0 ? kEntered : kCallDeadline) + Within(&random, 4 * kMillisecond);
      // Beyond its deadline a rank waits for a silent rank 0 for Control::kVerdictGrace.
      const bool is_judge_of_deadlines = rank == 0 && story.reports_deadlines;
      const Nanoseconds longest = rank == cut_off ? kSecond : kLongestPause;
      const Nanoseconds time =
          Within(&random, is_judge_of_deadlines ? kCallDeadline - begin + 1400 * kMillisecond : longest);
      if (time > 0) job.At(begin, [&job, rank, time] { job.Pause(rank, time); });
      awake_at = std::max(awake_at, begin + time);
    }
    job.Run(kLimit);
    EXPECT_LT(job.clock().now(), kLimit) << "hang";
    for (int rank = 0; rank < n; ++rank) {
      const std::optional<Verdict>& verdict = job.verdict(rank);
      EXPECT_EQ(verdict.has_value(), story.code != Code::kOk && (rank != culprit || verdict)) << "rank " << rank;
      if (!verdict) continue;
      EXPECT_EQ(verdict->rank, culprit) << "rank " << rank << ": " << verdict->message;
      EXPECT_EQ(verdict->code, story.code) << verdict->message;
      times.push_back(job.verdict_at(rank) - std::max(awake_at, kCallDeadline));
    }
    if (HasFailure()) return;
  }
  // After the failure, or once all run again.
  EXPECT_LE(std::ranges::max(times), 2 * kSecond);
  std::printf("%d ranks: %s\n", n, TimesText(times).c_str());
}

// A rank is away when the verdict is announced, and rank 0 is paused while it waits for it in order to leave, for
// longer than a rank may be away.
TEST_P(ControlSimTest, APausedRankZeroDoesNotLeaveBeforeARankThatIsAwayHasTheVerdict) {
  const int n = GetParam();
  for (int step = 0; step < 100; ++step) {
    SCOPED_TRACE(testing::Message() << n << " ranks, step " << step);
    SimControlJob job(step + 1, n, {});
    for (int rank = 0; rank < n; ++rank) job.At(0, [&job, rank] { job.Open(rank); });
    job.At(2 * kMillisecond, [&] { job.Cut({1}, {.kind = SimCut::Kind::kReset}); });
    job.At(2 * kMillisecond + kMicrosecond, [&] {
      job.Abort(0);
      job.Close(0);
      job.Pause(0, 2 * kSecond + step * 7 * kMillisecond);
    });
    job.Run(kLimit);
    EXPECT_TRUE(job.closed(0));
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_TRUE(job.verdict(rank)) << "rank " << rank;
      EXPECT_EQ(job.verdict(rank)->code, Code::kAborted) << "rank " << rank << ": " << job.verdict(rank)->message;
    }
    if (HasFailure()) return;
  }
}

// Something between the hosts lets handshakes pass and resets what follows, for ever: rank 0 leaves all the same.
TEST_P(ControlSimTest, APathThatBreaksEachConnectionHoldsRankZeroUpForALimitedTime) {
  const int n = GetParam();
  std::vector<SimCut> cuts;
  for (int message = 4; message < 4000; message += 7) cuts.push_back({.rank = 1, .message = message, .after = true});
  SimControlJob job(n, n, cuts);
  for (int rank = 0; rank < n; ++rank) job.At(rank * 10 * kMicrosecond, [&job, rank] { job.Open(rank); });
  LeaveAll(&job, 0, false);
  job.Run(kLimit);
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_TRUE(job.closed(rank)) << "rank " << rank;
    EXPECT_LE(job.closing_time(rank), 18 * kSecond) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlSimTest, testing::Range(2, kSanitized ? 4 : 7));

}  // namespace
}  // namespace annulus
