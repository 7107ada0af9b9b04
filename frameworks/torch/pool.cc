#include "frameworks/torch/pool.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace annulus_torch {
namespace {

constexpr std::chrono::seconds kIdleLimit{10};

Pool* g_pool = nullptr;

}  // namespace

// A forked child has none of the threads, and perhaps a locked mutex: it gets a pool of its own.
Pool& Pool::OfProcess() {
  static const bool made = [] {
    g_pool = new Pool;
    pthread_atfork(nullptr, nullptr, [] { g_pool = new Pool; });
    return true;
  }();
  static_cast<void>(made);
  return *g_pool;
}

void Pool::Post(std::function<void()> task) {
  std::list<std::thread> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended.swap(ended_);
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size()) {
      threads_.emplace_front();
      threads_.front() = std::thread([this, self = threads_.begin()] { Serve(self); });
    } else {
      posted_.notify_one();
    }
  }
  for (std::thread& thread : ended) thread.join();
}

void Pool::Serve(std::list<std::thread>::iterator self) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    const bool got = posted_.wait_for(lock, kIdleLimit, [this] { return !tasks_.empty(); });
    --idle_;
    if (!got) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
  ended_.splice(ended_.end(), threads_, self);
}

}  // namespace annulus_torch
