#include "collectives/calls/callbacks.h"

#include "base/thread.h"

namespace annulus {

Callbacks::~Callbacks() { Finish(); }

Status Callbacks::Start() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (thread_.joinable()) return Status();
  return StartThread(
      "the thread of callbacks", [this] { Run(); }, &thread_);
}

void Callbacks::Add(const Callback& callback) {
  const std::lock_guard<std::mutex> lock(mu_);
  waiting_.push_back(callback);
  changed_.notify_one();
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
    changed_.wait(lock, [this] { return finishing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Callback callback = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    callback.function(callback.context, static_cast<annulus_status_t>(callback.code));
    lock.lock();
  }
}

}  // namespace annulus
