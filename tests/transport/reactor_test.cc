// The reactor's bound on work: whoever drives it gets to look at the time, however much there is to do.
#include "transport/reactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <functional>
#include <thread>

namespace annulus {
namespace {

TEST(ReactorTest, ReturnsAlthoughASourceIsAlwaysReady) {
  Reactor reactor;
  int handled = 0;
  std::function<void()> again = [&] {
    ++handled;
    asio::post(reactor.context(), again);
  };
  again();
  reactor.WaitUntil(kNoDeadline);
  EXPECT_GT(handled, 1);
  EXPECT_LE(handled, Reactor::kMostHandlers + 1);
  reactor.WaitUntil(Now());
  EXPECT_LE(handled, 2 * Reactor::kMostHandlers + 1);
}

TEST(ReactorTest, RunsAllThatIsDueWithinTheBound) {
  Reactor reactor;
  int handled = 0;
  for (int i = 0; i < Reactor::kMostHandlers; ++i) asio::post(reactor.context(), [&] { ++handled; });
  reactor.WaitUntil(kNoDeadline);
  EXPECT_EQ(handled, Reactor::kMostHandlers);
}

// Streams are looked at every 20 us and more. A wait may take longer where others want the processor, but not each.
TEST(ReactorTest, ShortWaitsAreNotRoundedUpToMilliseconds) {
  Reactor reactor;
  Nanoseconds least = kSecond;
  for (int i = 0; i < 200; ++i) {
    const Nanoseconds begin = Now();
    reactor.WaitUntil(begin + 50 * kMicrosecond);
    least = std::min(least, Now() - begin);
  }
  EXPECT_LT(least, 900 * kMicrosecond);
  EXPECT_GE(least, 50 * kMicrosecond);
}

TEST(ReactorTest, AShortWaitThatEndsEarlyLeavesNothingToTheNext) {
  Reactor reactor;
  reactor.Wake();
  reactor.WaitUntil(Now() + 5 * kMillisecond);
  const Deadline deadline = Now() + 15 * kMillisecond;
  reactor.WaitUntil(deadline);
  EXPECT_GE(Now(), deadline);
}

TEST(ReactorTest, WakeUpsDoNotPileUp) {
  Reactor reactor;
  for (int i = 0; i < 10 * Reactor::kMostHandlers; ++i) reactor.Wake();
  int handled = 0;
  asio::post(reactor.context(), [&] { ++handled; });
  reactor.WaitUntil(kNoDeadline);
  EXPECT_EQ(handled, 1) << "it is behind more wake-ups than a wait takes";
  const Deadline deadline = Now() + kMillisecond;
  reactor.WaitUntil(deadline);
  EXPECT_GE(Now(), deadline) << "none was left";
  reactor.Wake();
  reactor.WaitUntil(kNoDeadline);
}

// Each turn goes to the other thread by a wake-up; one that is lost, or does not show what was written before, ends
// this by the deadline of the test.
TEST(ReactorTest, NoWakeUpIsLost) {
  constexpr int kTurns = 20'000;
  Reactor reactors[2];
  std::atomic<int> turn{0};
  const auto take_turns = [&](int side) {
    const Deadline deadline = DeadlineAfter(60 * kSecond);
    for (int mine = side; mine < kTurns; mine += 2) {
      while (turn.load(std::memory_order_relaxed) != mine) {
        ASSERT_LT(Now(), deadline);
        reactors[side].WaitUntil(deadline);
      }
      turn.store(mine + 1, std::memory_order_relaxed);
      reactors[1 - side].Wake();
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
}

}  // namespace
}  // namespace annulus
