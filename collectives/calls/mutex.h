// Mutex: a lock for the path of the smallest calls, of which a lock is a tenth. Taking one that is free is one atomic
// exchange, and so is giving it back; the C library's mutex takes some fifty instructions for the two, which look at
// kinds of mutexes that are not needed here. Use std::mutex elsewhere. Conditions go with it as
// std::condition_variable_any.
//
// The three states are those of "Mutex2" in Ulrich Drepper, "Futexes Are Tricky" (2011), section 6.
#pragma once

#include <atomic>
#include <mutex>

namespace annulus {

class SmallMutex {
 public:
  SmallMutex() = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;

  void lock() {
    if (!try_lock()) [[unlikely]]
      Await();
  }
  bool try_lock() {
    int seen = kFree;
    return state_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      state_.notify_one();
  }

 private:
  enum : int { kFree, kHeld, kAwaited };  // kAwaited: held, and threads may be asleep.

  [[gnu::noinline]] void Await() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      state_.wait(kAwaited, std::memory_order_relaxed);
  }

  std::atomic<int> state_{kFree};
};

// ThreadSanitizer sees in which order std::mutexes are taken, and warns where two orders may end in a deadlock.
#ifdef __SANITIZE_THREAD__
using Mutex = std::mutex;
#else
using Mutex = SmallMutex;
#endif

}  // namespace annulus
