// Threads of the library, where they cannot be started.
#include "base/thread.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <new>

#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

TEST(ThreadTest, TheCallerGetsItsSignalsAgainWhereMemoryRanOut) {
  std::thread thread;
  const std::function<void()> body = [] {};
  bool failed = false;
  FailAllocation(1);
  try {
    EXPECT_TRUE(StartThread("a thread", body, &thread).ok());
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  EXPECT_TRUE(StopFailing());
  EXPECT_TRUE(failed);
  sigset_t blocked;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
  if (thread.joinable()) thread.join();
}

}  // namespace
}  // namespace annulus
