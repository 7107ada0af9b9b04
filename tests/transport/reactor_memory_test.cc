// What the reactor takes from the heap: nothing to wake it, nor for short waits.
#include <gtest/gtest.h>

#include <cstddef>
#include <thread>

#include "base/clock.h"
#include "tests/transport/allocation_counter.h"
#include "transport/reactor.h"

namespace annulus {
namespace {

TEST(ReactorMemoryTest, WakingAndShortWaitsNeedNoMemory) {
  Reactor reactor;
  // The first wait makes the timer.
  reactor.WaitUntil(Now() + kMillisecond);
  for (int i = 0; i < 10; ++i) {
    size_t taken = 0;
    std::thread([&] {
      const size_t before = AllocationsOfThisThread();
      reactor.Wake();
      reactor.Wake();
      taken = AllocationsOfThisThread() - before;
    }).join();
    EXPECT_EQ(taken, 0u);
    const size_t before = AllocationsOfThisThread();
    reactor.WaitUntil(Now() + kMillisecond);
    reactor.WaitUntil(Now() + kMillisecond);
    EXPECT_EQ(AllocationsOfThisThread() - before, 0u);
  }
}

TEST(ReactorMemoryTest, AWaitWithoutMemoryForItsTimerStillEnds) {
  Reactor reactor;
  FailAllocation(1);
  const Deadline deadline = Now() + kMillisecond;
  reactor.WaitUntil(deadline);
  EXPECT_TRUE(StopFailing());
  EXPECT_GE(Now(), deadline);
}

}  // namespace
}  // namespace annulus
