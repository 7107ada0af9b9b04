// How slots are written follows the distance of the peer's processor, with patience.
#include "transport/shm/shm_distance.h"

#include <gtest/gtest.h>

#include <vector>

namespace annulus {
namespace {

constexpr Nanoseconds kHere = 20;  // The line was in this processor's cache.
constexpr Nanoseconds kNear = 40;
constexpr Nanoseconds kBetween = 85;
constexpr Nanoseconds kFar = 150;
constexpr Nanoseconds kInterrupted = 50 * kMicrosecond;
constexpr Nanoseconds kFastRewrite = 450;
constexpr Nanoseconds kSlowRewrite = 1500;

// Adds as many samples as are judged at once; whether that changed anything.
bool Judge(ShmDistance* distance, const std::vector<Nanoseconds>& samples) {
  EXPECT_EQ(samples.size(), ShmDistance::kSamples);
  EXPECT_FALSE(distance->asks_for_rewrite());
  bool changed = false;
  for (const Nanoseconds took : samples) changed |= distance->AddReturn(took);
  return changed;
}

// The same for slots, which it must have asked for.
bool JudgeRewrites(ShmDistance* distance, const std::vector<Nanoseconds>& samples) {
  bool changed = false;
  for (const Nanoseconds took : samples) {
    EXPECT_TRUE(distance->asks_for_rewrite());
    changed |= distance->AddRewrite(took);
  }
  EXPECT_FALSE(distance->asks_for_rewrite());
  return changed;
}

std::vector<Nanoseconds> All(Nanoseconds took) { return std::vector<Nanoseconds>(ShmDistance::kSamples, took); }

TEST(ShmDistance, PlainUntilThePeerIsFoundFar) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_TRUE(distance.probes());
  EXPECT_FALSE(distance.streams());
  EXPECT_EQ(distance.nanoseconds(), 0);
  EXPECT_FALSE(Judge(&distance, All(kFar)));
  EXPECT_EQ(distance.nanoseconds(), kFar);
  EXPECT_FALSE(distance.streams());
  for (size_t i = 1; i < ShmDistance::kSamples; ++i) EXPECT_FALSE(distance.AddRewrite(kSlowRewrite));
  EXPECT_FALSE(distance.streams());
  EXPECT_TRUE(distance.AddRewrite(kSlowRewrite));
  EXPECT_TRUE(distance.streams());
}

TEST(ShmDistance, APeerIsNearOnceThatIsKnown) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_FALSE(distance.is_near());
  Judge(&distance, All(kBetween));
  EXPECT_FALSE(distance.is_near());
  Judge(&distance, All(kNear));
  EXPECT_TRUE(distance.is_near());
  Judge(&distance, All(kBetween));
  EXPECT_TRUE(distance.is_near());
  Judge(&distance, All(kFar));
  EXPECT_FALSE(distance.is_near());
}

// Some machines' far processors are hardly farther than what decides about stores.
TEST(ShmDistance, OneThatIsNotNearAnyMoreNeedNotBeFar) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kNear));
  Judge(&distance, All(ShmDistance::kFarAbove - 2));
  EXPECT_FALSE(distance.is_near());
  EXPECT_FALSE(distance.asks_for_rewrite());
}

// Who lends memory fills no slots, so nobody may ever time what is asked for.
TEST(ShmDistance, ANearPeerIsFoundAgainWithoutTheRewritesThatWereAskedFor) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kNear));
  std::vector<Nanoseconds> noisy = All(kNear);
  noisy[1] = noisy[4] = noisy[7] = kInterrupted;
  Judge(&distance, noisy);
  EXPECT_FALSE(distance.is_near());
  ASSERT_TRUE(distance.asks_for_rewrite());
  for (const Nanoseconds took : All(kNear)) EXPECT_FALSE(distance.AddReturn(took));
  EXPECT_TRUE(distance.is_near());
  EXPECT_FALSE(distance.asks_for_rewrite()) << "a near peer needs none";
}

TEST(ShmDistance, AFarPeerStaysFarWhileRewritesAreAskedFor) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kFar));
  for (int i = 0; i < 10 * ShmDistance::kPatience; ++i) {
    for (const Nanoseconds took : All(i % 2 == 0 ? kFar : kBetween)) EXPECT_FALSE(distance.AddReturn(took));
    EXPECT_FALSE(distance.is_near());
    EXPECT_TRUE(distance.asks_for_rewrite());
  }
  EXPECT_TRUE(JudgeRewrites(&distance, All(kSlowRewrite)));
  // The wait for the next ones begins only now.
  for (int i = 0; i < ShmDistance::kPatience; ++i) Judge(&distance, All(kFar));
  EXPECT_FALSE(distance.asks_for_rewrite());
}

TEST(ShmDistance, RewritesFromBeforeThePeerWasNearDoNotCount) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kFar));
  for (size_t i = 1; i < ShmDistance::kSamples; ++i) EXPECT_FALSE(distance.AddRewrite(kSlowRewrite));
  for (const Nanoseconds took : All(kNear)) EXPECT_FALSE(distance.AddReturn(took));
  Judge(&distance, All(kFar));
  EXPECT_FALSE(JudgeRewrites(&distance, All(kFastRewrite)));
}

TEST(ShmDistance, FollowsThePeerBothWays) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_FALSE(Judge(&distance, All(kNear)));
  EXPECT_FALSE(distance.asks_for_rewrite());
  EXPECT_FALSE(Judge(&distance, All(kFar)));
  EXPECT_TRUE(JudgeRewrites(&distance, All(kSlowRewrite)));
  EXPECT_FALSE(Judge(&distance, All(kFar)));
  EXPECT_FALSE(distance.asks_for_rewrite());
  EXPECT_TRUE(Judge(&distance, All(kNear)));
  EXPECT_FALSE(distance.streams());
}

TEST(ShmDistance, LinesFromFarThatComeManyAtOnceAreNear) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kFar));
  EXPECT_FALSE(JudgeRewrites(&distance, All(kFastRewrite)));
  EXPECT_FALSE(distance.streams());
  // Asks again, but not at once.
  for (int i = 0; i < ShmDistance::kPatience; ++i) {
    EXPECT_FALSE(Judge(&distance, All(kFar)));
    EXPECT_FALSE(distance.asks_for_rewrite());
  }
  Judge(&distance, All(kFar));
  EXPECT_TRUE(distance.asks_for_rewrite());
  EXPECT_TRUE(JudgeRewrites(&distance, All(kSlowRewrite)));
}

TEST(ShmDistance, WhatWasWronglyFoundFarIsFoundOut) {
  ShmDistance distance(SlotStores::kAuto);
  Judge(&distance, All(kFar));
  JudgeRewrites(&distance, All(kSlowRewrite));  // While something else took the processors.
  for (int i = 0; i < ShmDistance::kPatience; ++i) EXPECT_FALSE(Judge(&distance, All(kFar)));
  EXPECT_TRUE(distance.streams());
  Judge(&distance, All(kFar));
  EXPECT_TRUE(JudgeRewrites(&distance, All(kFastRewrite)));
  EXPECT_FALSE(distance.streams());
}

TEST(ShmDistance, BetweenNearAndFarNothingChanges) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_FALSE(Judge(&distance, All(kBetween)));
  EXPECT_FALSE(distance.asks_for_rewrite());
  Judge(&distance, All(kFar));
  JudgeRewrites(&distance, All(kSlowRewrite));
  EXPECT_FALSE(Judge(&distance, All(kBetween)));
  EXPECT_TRUE(distance.streams());
}

TEST(ShmDistance, InterruptionsDoNotMakeAPeerFar) {
  ShmDistance distance(SlotStores::kAuto);
  std::vector<Nanoseconds> samples = All(kNear);
  samples[0] = samples[5] = kInterrupted;
  EXPECT_FALSE(Judge(&distance, samples));
  EXPECT_EQ(distance.nanoseconds(), kNear);
  EXPECT_FALSE(distance.asks_for_rewrite());
  Judge(&distance, All(kFar));
  samples = All(kFastRewrite);
  samples[0] = samples[3] = samples[5] = samples[8] = kInterrupted;
  EXPECT_FALSE(JudgeRewrites(&distance, samples));
}

TEST(ShmDistance, LinesThatWereHereDoNotMakeAPeerNear) {
  ShmDistance distance(SlotStores::kAuto);
  std::vector<Nanoseconds> samples = All(kHere);
  samples[1] = samples[4] = samples[7] = kFar;
  Judge(&distance, samples);
  EXPECT_TRUE(distance.asks_for_rewrite());
}

TEST(ShmDistance, SettingsOverrideIt) {
  const ShmDistance plain(SlotStores::kPlain);
  EXPECT_FALSE(plain.probes());
  EXPECT_FALSE(plain.streams());
  const ShmDistance streaming(SlotStores::kStreaming);
  EXPECT_FALSE(streaming.probes());
  EXPECT_TRUE(streaming.streams());
}

}  // namespace
}  // namespace annulus
