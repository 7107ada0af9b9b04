// VerdictCell: holds the only verdict of a communicator; set once, polled on the data path.
//
// Threads: all functions from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"
#include "collectives/control/verdict.h"

namespace annulus {

class VerdictCell {
 public:
  bool has() const { return has_.load(std::memory_order_acquire); }

  // Constant once has().
  const Verdict& get() const { return verdict_; }

  // Returns false when there is a verdict already, which is kept.
  bool Set(const Verdict& verdict) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has()) return false;
    verdict_ = verdict;
    has_.store(true, std::memory_order_release);
    changed_.notify_all();
    return true;
  }

  // Waits for a verdict, at most for `duration`. Returns whether there is one.
  bool WaitFor(Nanoseconds duration) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(duration), [this] { return has(); });
  }

 private:
  std::atomic<bool> has_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  Verdict verdict_;
};

}  // namespace annulus
