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

// Adds as many samples as are judged at once; whether that changed anything.
bool Judge(ShmDistance* distance, const std::vector<Nanoseconds>& samples) {
  EXPECT_EQ(samples.size(), ShmDistance::kSamples);
  bool changed = false;
  for (const Nanoseconds took : samples) changed |= distance->Add(took);
  return changed;
}

std::vector<Nanoseconds> All(Nanoseconds took) { return std::vector<Nanoseconds>(ShmDistance::kSamples, took); }

TEST(ShmDistance, PlainUntilThePeerIsFoundFar) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_TRUE(distance.probes());
  EXPECT_FALSE(distance.streams());
  EXPECT_EQ(distance.nanoseconds(), 0);
  for (size_t i = 1; i < ShmDistance::kSamples; ++i) EXPECT_FALSE(distance.Add(kFar));
  EXPECT_FALSE(distance.streams());
  EXPECT_TRUE(distance.Add(kFar));
  EXPECT_TRUE(distance.streams());
  EXPECT_EQ(distance.nanoseconds(), kFar);
}

TEST(ShmDistance, FollowsThePeerBothWays) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_FALSE(Judge(&distance, All(kNear)));
  EXPECT_TRUE(Judge(&distance, All(kFar)));
  EXPECT_FALSE(Judge(&distance, All(kFar)));
  EXPECT_TRUE(Judge(&distance, All(kNear)));
  EXPECT_FALSE(distance.streams());
}

TEST(ShmDistance, BetweenNearAndFarNothingChanges) {
  ShmDistance distance(SlotStores::kAuto);
  EXPECT_FALSE(Judge(&distance, All(kBetween)));
  EXPECT_FALSE(distance.streams());
  Judge(&distance, All(kFar));
  EXPECT_FALSE(Judge(&distance, All(kBetween)));
  EXPECT_TRUE(distance.streams());
}

TEST(ShmDistance, InterruptionsDoNotMakeAPeerFar) {
  ShmDistance distance(SlotStores::kAuto);
  std::vector<Nanoseconds> samples = All(kNear);
  samples[0] = samples[5] = kInterrupted;
  EXPECT_FALSE(Judge(&distance, samples));
  EXPECT_EQ(distance.nanoseconds(), kNear);
}

TEST(ShmDistance, LinesThatWereHereDoNotMakeAPeerNear) {
  ShmDistance distance(SlotStores::kAuto);
  std::vector<Nanoseconds> samples = All(kHere);
  samples[1] = samples[4] = samples[7] = kFar;
  EXPECT_TRUE(Judge(&distance, samples));
  EXPECT_TRUE(distance.streams());
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
