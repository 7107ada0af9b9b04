// VerdictCell: holds the only verdict of a communicator, set once and polled on the data path; and what the rank
// learned after it about ranks that are lost.
//
// Threads: all functions from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

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

  // Keeps the news that one more rank is lost, which does not change the verdict.
  void AddLoss(const Verdict& loss) {
    const std::lock_guard<std::mutex> lock(mutex_);
    losses_.push_back(loss);
    changed_.notify_all();
  }

  // Returns the first of the verdict and the later losses for which `concerns` holds, after waiting for one at most for
  // `duration`.
  template <class Concerns>
  std::optional<Verdict> FindWithin(Nanoseconds duration, Concerns concerns) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::optional<Verdict> found;
    changed_.wait_for(lock, std::chrono::nanoseconds(duration), [&] {
      if (has() && concerns(verdict_)) found = verdict_;
      for (size_t i = 0; !found && i < losses_.size(); ++i) {
        if (concerns(losses_[i])) found = losses_[i];
      }
      return found.has_value();
    });
    return found;
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
  std::vector<Verdict> losses_;  // At most one per rank; guarded by mutex_.
};

}  // namespace annulus
