// What is faster, a loan or a slot, decides; both stay known.
#include "transport/shm/shm_loan_choice.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 64 * 1024;

TEST(ShmPaceTest, IsTheLeastOfTheLatestCopies) {
  ShmPace pace;
  for (const Nanoseconds took : {90, 100, 5000, 110}) pace.Add(kBytes, took);
  EXPECT_EQ(pace.value(), 0u) << "too few to tell";
  pace.Add(kBytes, 120);
  EXPECT_EQ(pace.value(), 90u);
  pace.Add(kBytes / 2, 100);
  EXPECT_EQ(pace.value(), 100u) << "200 for 64 KiB, and the 90 is too old";
  for (size_t i = 1; i < ShmPace::kSamples; ++i) pace.Add(kBytes, 300);
  EXPECT_EQ(pace.value(), 200u);
}

TEST(ShmPaceTest, IsKnownHoweverShortOrLongCopiesTake) {
  ShmPace pace;
  for (size_t i = 0; i < ShmPace::kSamples; ++i) pace.Add(kBytes, 0);
  EXPECT_EQ(pace.value(), 1u);
  for (size_t i = 0; i < ShmPace::kSamples; ++i) pace.Add(ShmPace::kLeastTimed, 3600 * kSecond);
  EXPECT_EQ(pace.value(), UINT32_MAX);
}

// Number of loans among so many slices.
int CountLoans(ShmLoanChoice* choice, int slices, const ShmLoanChoice::Paces& paces) {
  int loans = 0;
  for (int i = 0; i < slices; ++i) {
    loans += choice->Lends(paces) ? 1 : 0;
    choice->Sent(true);
  }
  return loans;
}

TEST(ShmLoanChoiceTest, UntilAllPacesAreKnownTheyTakeTurns) {
  for (const ShmLoanChoice::Paces& paces :
       {ShmLoanChoice::Paces{}, {.fill = 1, .read = 1}, {.fill = 1, .loan = 1}, {.read = 1, .loan = 1}}) {
    ShmLoanChoice choice;
    EXPECT_EQ(CountLoans(&choice, 16, paces), 16);
    EXPECT_EQ(CountLoans(&choice, 16, paces), 0);
    EXPECT_EQ(CountLoans(&choice, 320, paces), 160);
  }
}

TEST(ShmLoanChoiceTest, TheFasterWayIsTakenAndTheOtherNowAndThen) {
  ShmLoanChoice choice;
  EXPECT_EQ(CountLoans(&choice, 64 + 128 + 256 + 512, {.fill = 100, .read = 100, .loan = 300}), 64) << "four times";
  EXPECT_EQ(CountLoans(&choice, 10240, {.fill = 100, .read = 100, .loan = 300}), 160) << "ten times";
  EXPECT_EQ(CountLoans(&choice, 10240, {.fill = 400, .read = 400, .loan = 300}), 10080);
  EXPECT_EQ(CountLoans(&choice, 10240, {.fill = 150, .read = 150, .loan = 300}), 160);
  EXPECT_EQ(CountLoans(&choice, 10240, {.fill = UINT32_MAX, .read = UINT32_MAX, .loan = UINT32_MAX}), 10080);
}

TEST(ShmLoanChoiceTest, WhoeverAsksOnlyWhereItMayBeWorthWhileKnowsBothWays) {
  ShmLoanChoice choice;
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(choice.MayLend()) << "nothing is known yet";
    choice.Lends({});
    choice.Sent(true);
  }
  int asked = 0;
  int loans = 0;
  for (int i = 0; i < 128 + 256 + 512; ++i) {
    if (choice.MayLend()) {
      ++asked;
      loans += choice.Lends({.fill = 100, .read = 100, .loan = 300}) ? 1 : 0;
    }
    choice.Sent(true);
  }
  EXPECT_EQ(asked, 3 * 16);
  EXPECT_EQ(loans, 3 * 16) << "in a row each time";
  EXPECT_TRUE(choice.MayLend());
  EXPECT_FALSE(choice.Lends({.fill = 300, .read = 300, .loan = 300})) << "a slot, for once";
  choice.Sent(true);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(choice.MayLend()) << "loans are faster now";
    choice.Sent(true);
  }
}

TEST(ShmLoanChoiceTest, SlicesThatAreNeverLentDoNotCount) {
  constexpr ShmLoanChoice::Paces kPaces = {.fill = 100, .read = 100, .loan = 300};
  ShmLoanChoice choice;
  EXPECT_EQ(CountLoans(&choice, 64, {}), 32);
  for (int i = 0; i < 1000; ++i) choice.Sent(false);
  EXPECT_TRUE(choice.MayLend()) << "the period has just begun";
  EXPECT_EQ(CountLoans(&choice, 128, kPaces), 16);
  EXPECT_TRUE(choice.Lends(kPaces)) << "the next one begins";
  choice.Sent(false);  // It was asked about.
  for (int i = 1; i < 16; ++i) {
    EXPECT_TRUE(choice.Lends(kPaces));
    choice.Sent(false);
  }
  EXPECT_FALSE(choice.Lends(kPaces));
}

TEST(ShmLoanChoiceTest, TheAnswerStaysUntilTheSliceIsSentAndSlotsBecomeWarm) {
  ShmLoanChoice choice;
  uint32_t slots = 0;
  for (uint32_t slice = 0; slice < 100; ++slice) {
    const bool lends = choice.Lends({});
    slots = lends ? 0 : slots + 1;
    EXPECT_EQ(choice.fills_warm_slot(), slots > ShmPace::kColdSlots);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(choice.Lends({.fill = 1, .read = 1, .loan = 1}), lends);
    choice.Sent(true);
    EXPECT_FALSE(choice.fills_warm_slot());
  }
}

}  // namespace
}  // namespace annulus
