// Ranks that are only slow: paused for a while, or throttled to a twentieth of the time. No verdict names them, alone
// or beside a rank that dies or a link that breaks. Only where a deadline passes and nothing tells why, as when a link
// is silent, may a rank be named that is paused just then. A failing case prints its seed, which replays it.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "collectives/control/control.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kTimeout = 6 * kSecond;
constexpr Nanoseconds kLongestPause = 2500 * kMillisecond;
// How long before the deadline a late pause begins at most; all others are over by then.
constexpr Nanoseconds kBeforeDeadline = 400 * kMillisecond;
// A long pause ends so long before the deadline, at least and at most: what is left of the call then takes less.
constexpr Nanoseconds kLeastLeft = 20 * kMillisecond;
constexpr Nanoseconds kMostLeft = 200 * kMillisecond;
// As the kernel's bandwidth control has it: a share of each period.
constexpr Nanoseconds kPeriod = 100 * kMillisecond;
constexpr Nanoseconds kShare = 5 * kMillisecond;
// What a verdict may take after the event, or after the last deadline.
constexpr Nanoseconds kVerdictLimit = 2 * kSecond;

enum class Trouble { kNone, kDeath, kSilentLink, kBrokenLink };

struct Story {
  SimJobOptions options;
  Trouble trouble = Trouble::kNone;
  int culprit = -1;                                         // The rank that dies; or an end of the link.
  Nanoseconds at = 0;                                       // Time of the trouble.
  std::vector<bool> slow;                                   // By rank.
  std::vector<std::pair<Nanoseconds, Nanoseconds>> pauses;  // By rank: begin and end.
};

Nanoseconds Within(std::mt19937_64* random, Nanoseconds limit) {
  return static_cast<Nanoseconds>((*random)() % static_cast<uint64_t>(limit));
}

Story MakeStory(uint64_t seed, std::mt19937_64* random) {
  Story story;
  SimJobOptions& options = story.options;
  options.world.seed = seed;
  options.world.nranks = static_cast<int>(3 + (*random)() % 3);
  options.world.kind = static_cast<SimKind>((*random)() % 3);
  options.plan.slots = options.world.slots = 3;
  options.plan.slice_bytes = 512;
  options.plan.small_bytes = 64;
  options.world.slot_bytes = SlotBytes(options.plan);
  options.call.sequence = 1;
  options.call.kind = CollectiveKind::kAllreduce;
  options.call.count = 1 + (*random)() % 20000;
  options.timeout = kTimeout;
  options.awaits_stopped = true;
  story.trouble = static_cast<Trouble>((*random)() % 4);
  story.culprit = static_cast<int>((*random)() % options.world.nranks);
  story.at = Within(random, 300 * kMicrosecond);
  story.slow.assign(options.world.nranks, false);
  story.pauses.resize(options.world.nranks);
  for (uint64_t slow = 1 + (*random)() % 2; slow > 0; --slow) story.slow[(*random)() % story.slow.size()] = true;
  return story;
}

// A pause soon after the start, where it meets the call; or around the deadline, where it meets the questions.
std::pair<Nanoseconds, Nanoseconds> Pause(SimWorld* world, int rank, std::mt19937_64* random) {
  const bool late = (*random)() % 2 == 0;
  const Nanoseconds at = late ? kTimeout - Within(random, kBeforeDeadline) : Within(random, 300 * kMicrosecond);
  const Nanoseconds end = at + Within(random, kLongestPause);
  world->StopRank(rank, at);
  world->ResumeRank(rank, end);
  return {at, end};
}

void Throttle(SimWorld* world, int rank, std::mt19937_64* random) {
  const Nanoseconds end = kTimeout + kVerdictLimit;
  for (Nanoseconds period = Within(random, 300 * kMicrosecond); period < end; period += kPeriod) {
    world->StopRank(rank, period);
    world->ResumeRank(rank, period + kPeriod - kShare);
  }
}

// A pause from soon after the start until just before the deadline.
std::pair<Nanoseconds, Nanoseconds> LongPause(SimWorld* world, int rank, std::mt19937_64* random) {
  const Nanoseconds at = Within(random, 300 * kMicrosecond);
  const Nanoseconds end = kTimeout - kLeastLeft - Within(random, kMostLeft - kLeastLeft);
  world->StopRank(rank, at);
  world->ResumeRank(rank, end);
  return {at, end};
}

enum class Slowness { kShort, kUpToTheDeadline };

void Begin(Slowness how, Story* told, SimJob* job, std::mt19937_64* random) {
  Story& story = *told;
  const int neighbour = (story.culprit + 1) % story.options.world.nranks;
  for (int rank = 0; rank < story.options.world.nranks; ++rank) {
    if (!story.slow[rank]) continue;
    if (how == Slowness::kUpToTheDeadline) {
      story.pauses[rank] = LongPause(&job->world(), rank, random);
    } else if ((*random)() % 2 == 0) {
      Throttle(&job->world(), rank, random);
    } else {
      story.pauses[rank] = Pause(&job->world(), rank, random);
    }
  }
  if (story.trouble == Trouble::kDeath) job->world().KillRank(story.culprit, story.at);
  if (story.trouble == Trouble::kSilentLink) job->world().MuteLink(story.culprit, neighbour, story.at);
  if (story.trouble == Trouble::kBrokenLink) job->world().CutLink(story.culprit, neighbour, story.at);
}

// When a verdict is due on that rank. A rank that is away learns of it when it runs again, and all learn of it from
// rank 0. A broken link is noticed once it is needed, which any rank that is away may put off. A throttled rank does
// each of its steps up to a period late.
Nanoseconds Limit(const Story& story, int rank) {
  Nanoseconds due = story.trouble == Trouble::kSilentLink ? kTimeout : story.at;
  bool any_throttled = false;
  for (int r = 0; r < story.options.world.nranks; ++r) {
    const bool delays = r == 0 || r == rank || story.trouble == Trouble::kBrokenLink;
    if (delays) due = std::max(due, story.pauses[r].second);
    any_throttled |= story.slow[r] && story.pauses[r].second == 0;
  }
  return due + kVerdictLimit + (any_throttled ? 2 * kPeriod : 0);
}

// The questions come when the deadline has passed, perhaps late because rank 0 is slow, and may be answered for a
// second.
bool MayBeCalledSilent(const Story& story, int rank) {
  const Nanoseconds end = story.pauses[rank].second;
  return story.trouble == Trouble::kSilentLink && end > kTimeout + Arbiter::kAnswerWindow;
}

void ExpectTrueVerdict(const Story& story, const SimJob& job, int rank, const Verdict& first) {
  const Verdict& verdict = *job.verdict(rank);
  EXPECT_NE(story.trouble, Trouble::kNone) << verdict.message;
  EXPECT_EQ(verdict, first) << verdict.message << " / " << first.message;
  EXPECT_LE(job.ended_at(rank), Limit(story, rank));
  if (story.trouble == Trouble::kDeath) {
    EXPECT_EQ(verdict.rank, story.culprit) << verdict.message;
  }
  if (story.trouble == Trouble::kBrokenLink) {
    const int neighbour = (story.culprit + 1) % story.options.world.nranks;
    EXPECT_TRUE(verdict.rank == story.culprit || verdict.rank == neighbour) << verdict.message;
  }
  const bool calls_silent = verdict.message.find("not respond") != std::string::npos;
  EXPECT_TRUE(!calls_silent || MayBeCalledSilent(story, verdict.rank)) << verdict.message;
}

// Returns the number of stories with a verdict.
uint64_t TellAll(Slowness how, uint64_t rounds) {
  uint64_t verdicts = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed * 1009);
    Story story = MakeStory(seed, &random);
    SimJob job(story.options);
    Begin(how, &story, &job, &random);
    EXPECT_TRUE(job.Run()) << "hang";
    std::optional<Verdict> first;
    for (int rank = 0; rank < story.options.world.nranks; ++rank) {
      if (job.world().dead(rank)) continue;
      if (job.finished(rank)) {
        EXPECT_EQ(job.Output(rank), job.Expected(rank)) << "rank " << rank;
        continue;
      }
      EXPECT_TRUE(job.verdict(rank)) << "rank " << rank;
      if (!job.verdict(rank)) continue;
      if (!first) first = job.verdict(rank);
      ExpectTrueVerdict(story, job, rank, *first);
    }
    if (testing::Test::HasFailure()) break;
    verdicts += first.has_value();
  }
  return verdicts;
}

TEST(SlowRanksSimTest, NobodyCallsThemDead) {
  const uint64_t rounds = Rounds(400, 10000);
  EXPECT_GT(TellAll(Slowness::kShort, rounds) * 4, rounds)
      << "too few troubles hit a running call for the test to mean something";
}

TEST(SlowRanksSimTest, NobodyCallsThemDeadThatRunAgainJustBeforeTheDeadline) {
  const uint64_t rounds = Rounds(400, 10000);
  EXPECT_GT(TellAll(Slowness::kUpToTheDeadline, rounds) * 4, rounds)
      << "too few troubles hit a running call for the test to mean something";
}

}  // namespace
}  // namespace annulus
