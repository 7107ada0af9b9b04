// How a waiting thread divides its wait into polls and sleep, and what it learns from long and short waits.
#include "collectives/engine/waiter.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace annulus {
namespace {

constexpr int kYields = 64;

// Polls until it is to sleep; the number of polls.
int PollsBeforeSleep(Waiter* waiter) {
  int polls = 0;
  while (waiter->Idle() != Waiter::Next::kSleep) ++polls;
  return polls;
}

WaitPolicy OnlyYields() { return {.spin = 0, .yields = kYields}; }

TEST(WaiterTest, YieldsAsOftenAsThePolicySaysAndThenSleeps) {
  Waiter waiter;
  waiter.Begin(OnlyYields());
  EXPECT_EQ(PollsBeforeSleep(&waiter), kYields);
}

TEST(WaiterTest, SpinsForAsLongAsThePolicySays) {
  Waiter waiter;
  waiter.Begin({.spin = 2 * kMillisecond, .yields = 0});
  const Nanoseconds begin = Now();
  PollsBeforeSleep(&waiter);
  EXPECT_GE(Now() - begin, 2 * kMillisecond);
}

TEST(WaiterTest, PollsLessAfterLongWaitsButNeverNot) {
  Waiter waiter;
  waiter.Begin(OnlyYields());
  for (int expected = kYields; expected > kYields >> 5; expected /= 2) {
    EXPECT_EQ(PollsBeforeSleep(&waiter), expected);
    waiter.Slept(Now() + kMillisecond);
  }
  for (int wait = 0; wait < 3; ++wait) {
    waiter.Begin(OnlyYields());
    EXPECT_EQ(PollsBeforeSleep(&waiter), kYields >> 5);
    waiter.Slept(Now() + kMillisecond);
  }
}

TEST(WaiterTest, PollsMoreAgainAfterShortWaits) {
  Waiter waiter;
  waiter.Begin(OnlyYields());
  for (int wait = 0; wait < 3; ++wait) {
    PollsBeforeSleep(&waiter);
    waiter.Slept(Now() + kMillisecond);
  }
  for (int expected = kYields >> 3; expected < kYields; expected *= 2) {
    EXPECT_EQ(PollsBeforeSleep(&waiter), expected);
    waiter.Reset();
    waiter.Slept(waiter.idle_since());  // It took no time at all.
  }
  EXPECT_EQ(PollsBeforeSleep(&waiter), kYields);
}

// Keeps this thread on one core, which another thread occupies.
class SharedCore {
 public:
  SharedCore() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    occupant_ = std::thread([this] {  // It inherits the core.
      while (!ends_.load(std::memory_order_relaxed)) continue;
    });
  }
  ~SharedCore() {
    ends_ = true;
    occupant_.join();
    sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  std::atomic<bool> ends_{false};
  std::thread occupant_;
};

TEST(WaiterTest, WhoMaySpinDoesNotYieldAgainAndAgainToWhoeverHasItsCore) {
  constexpr int kMany = 100'000;
  const SharedCore core;
  Waiter waiter;
  waiter.Begin({.spin = kMicrosecond, .yields = kMany});
  EXPECT_LT(PollsBeforeSleep(&waiter), kMany);
  waiter.Begin({.spin = kMicrosecond, .yields = kMany});
  EXPECT_LT(PollsBeforeSleep(&waiter), kMany) << "the next time too";
}

TEST(WaiterTest, WhoSharesItsCoreOnPurposeYieldsAllTheSame) {
  const SharedCore core;
  Waiter waiter;
  waiter.Begin(OnlyYields());
  EXPECT_EQ(PollsBeforeSleep(&waiter), kYields);
}

TEST(WaitPolicyTest, WhoHasNobodyToYieldToSleepsAtOnceWhenItMayNotSpin) {
  EXPECT_GT(ChooseWaitPolicy(2, 2, -1).spin, 0);
  EXPECT_EQ(ChooseWaitPolicy(4, 2, -1).spin, 0);
  EXPECT_GT(ChooseWaitPolicy(4, 2, -1).yields, 0);
  EXPECT_GT(ChooseWaitPolicy(1, 1, -1).spin, 0);
  const WaitPolicy alone = ChooseWaitPolicy(1, 2, 0);
  EXPECT_EQ(alone.yields, 0);
  Waiter waiter;
  waiter.Begin(alone);
  EXPECT_EQ(waiter.Idle(), Waiter::Next::kSleep);
}

}  // namespace
}  // namespace annulus
