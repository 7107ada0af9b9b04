#include "collectives/cuda/reset_watch.h"

#include <chrono>
#include <utility>

#include "base/thread.h"

namespace annulus {
namespace {

// Each look asks the driver once for each GPU.
constexpr std::chrono::milliseconds kPeriod(100);

}  // namespace

void ResetWatch::WakeNow() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stops_) return;
  is_asleep_.store(false, std::memory_order_seq_cst);
  if (thread_.joinable()) return changed_.notify_all();
  static_cast<void>(StartThread(
      "the thread that looks after GPUs", [this] { Run(); }, &thread_));
}

void ResetWatch::Stop() {
  std::thread ends;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
    ends = std::move(thread_);
    changed_.notify_all();
  }
  if (ends.joinable()) ends.join();
}

void ResetWatch::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops_) {
    // What comes from here on wakes it.
    is_asleep_.store(true, std::memory_order_seq_cst);
    lock.unlock();
    const bool goes_on = look_();
    lock.lock();
    if (goes_on) {
      is_asleep_.store(false, std::memory_order_seq_cst);
      changed_.wait_for(lock, kPeriod, [this] { return stops_; });
    } else {
      changed_.wait(lock, [this] { return stops_ || !is_asleep_.load(std::memory_order_seq_cst); });
    }
  }
}

}  // namespace annulus
