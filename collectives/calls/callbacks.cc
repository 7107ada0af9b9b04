#include "collectives/calls/callbacks.h"

#include <chrono>

#include "base/thread.h"

namespace annulus {
namespace {

constexpr std::chrono::milliseconds kLookEvery(1);
constexpr int kQuietLooks = 20;

}  // namespace

Callbacks::~Callbacks() { Finish(); }

Status Callbacks::Start() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (thread_.joinable()) return Status();
  const Status status = StartThread(
      "the thread of callbacks", [this] { Run(); }, &thread_);
  has_started_.store(status.ok(), std::memory_order_release);
  return status;
}

void Callbacks::Add(const Callback& callback, bool may_wait) {
  const std::lock_guard<std::mutex> lock(mu_);
  waiting_.push_back(callback);
  if (may_wait) looks_ = kQuietLooks;
  if (!may_wait || is_asleep_) changed_.notify_one();
}

void Callbacks::Finish() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    finishing_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Callbacks::Run() {
  id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    while (!finishing_ && waiting_.empty()) {
      if (looks_ > 0) {
        --looks_;
        changed_.wait_for(lock, kLookEvery);
        continue;
      }
      is_asleep_ = true;
      changed_.wait(lock);
      is_asleep_ = false;
    }
    if (waiting_.empty()) return;
    const Callback callback = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    callback.function(callback.context, static_cast<annulus_status_t>(callback.code));
    lock.lock();
  }
}

}  // namespace annulus
