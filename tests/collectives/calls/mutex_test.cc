// SmallMutex: one thread at a time, sleeping threads are woken, and conditions work with it.
#include "collectives/calls/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <vector>

namespace annulus {
namespace {

TEST(SmallMutexTest, OneThreadAtATimeHasIt) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  SmallMutex mutex;
  int count = 0;  // Guarded by the mutex.
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard<SmallMutex> lock(mutex);
        const int before = count;
        if (round % 64 == 0) std::this_thread::yield();  // The others come meanwhile, and have to sleep.
        count = before + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kRounds);
}

TEST(SmallMutexTest, OneThatIsHeldIsNotTaken) {
  SmallMutex mutex;
  mutex.lock();
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock();
  EXPECT_TRUE(mutex.try_lock());
  std::atomic<bool> has_it{false};
  std::thread other([&] {
    const std::lock_guard<SmallMutex> lock(mutex);
    has_it.store(true);
  });
  std::this_thread::yield();
  EXPECT_FALSE(has_it.load());
  mutex.unlock();
  other.join();
  EXPECT_TRUE(has_it.load());
}

TEST(SmallMutexTest, ConditionsWakeThoseThatWaitWithIt) {
  constexpr int kTurns = 1000;
  SmallMutex mutex;
  std::condition_variable_any changed;
  int turn = 0;  // Guarded by the mutex.
  const auto take_turns = [&](int parity) {
    std::unique_lock<SmallMutex> lock(mutex);
    while (true) {
      ASSERT_TRUE(
          changed.wait_for(lock, std::chrono::seconds(60), [&] { return turn % 2 == parity || turn >= kTurns; }));
      if (turn >= kTurns) return;
      ++turn;
      changed.notify_all();
    }
  };
  std::thread other(take_turns, 1);
  take_turns(0);
  other.join();
  EXPECT_EQ(turn, kTurns);
}

}  // namespace
}  // namespace annulus
