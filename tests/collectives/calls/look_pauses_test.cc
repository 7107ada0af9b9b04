// The times between looks at a queue that others drive.

#include "collectives/calls/look_pauses.h"

#include <gtest/gtest.h>

namespace annulus {
namespace {

using Time = LookPauses::Time;

TEST(LookPausesTest, WorkThatMayBeLeftAloneIsLookedAtAgainSoon) {
  LookPauses pauses;
  EXPECT_EQ(pauses.Next(true, true), LookPauses::kEvery);  // It has only just been queued.
  EXPECT_EQ(pauses.Next(true, true), LookPauses::kAgain);
  EXPECT_EQ(pauses.Next(true, true), LookPauses::kEvery);
}

TEST(LookPausesTest, AnIdleQueueIsLookedAtLessAndLess) {
  LookPauses pauses;
  EXPECT_EQ(pauses.Next(false, false), 2 * LookPauses::kAgain);
  EXPECT_EQ(pauses.Next(false, false), LookPauses::kEvery);
  EXPECT_EQ(pauses.Next(false, false), LookPauses::kEvery);
}

// However the looks find it, the two pauses that work may wait for are an eighth of the time in which none was left
// alone, or short.
TEST(LookPausesTest, PausesAreAShareOfTheTimeInWhichNothingWasLeftAlone) {
  for (const unsigned pattern : {0x00u, 0xffu, 0x55u, 0x11u, 0xf0u}) {
    LookPauses pauses;
    Time calm{0};
    Time last{0};
    for (int look = 0; look < 1000; ++look) {
      const Time pause = pauses.Next((pattern >> (look % 8) & 1) != 0, true);
      EXPECT_GE(pause, LookPauses::kAgain);
      EXPECT_LE(pause, std::clamp(calm / LookPauses::kCalmPerPause, LookPauses::kEvery, LookPauses::kRarely));
      calm += pause;
      last = pause;
    }
    EXPECT_EQ(last, LookPauses::kRarely) << pattern;
  }
}

TEST(LookPausesTest, APauseInWhichNothingHappensBeginsAnew) {
  LookPauses pauses;
  for (int look = 0; look < 1000; ++look) pauses.Next(true, true);
  pauses.Next(false, false);
  EXPECT_LE(pauses.Next(true, true), LookPauses::kEvery);
}

TEST(LookPausesTest, CallersThatComeBackAreSoonLookedAtOnceAMillisecondOnly) {
  LookPauses pauses;
  int looks = 0;
  for (Time calm{0}; calm < Time(1000000); ++looks) calm += pauses.Next(true, true);
  EXPECT_LE(looks, 1100);
}

}  // namespace
}  // namespace annulus
