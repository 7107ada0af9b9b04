// Callbacks: calls the functions that users gave for the ends of their queued calls, on a thread of its own, so that
// such a function may call anything, also what waits for work that the progress thread does.
//
// Threads: any; the callbacks have their own lock, which may be taken while Requests' is held, and is not held while a
// function runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "collectives/annulus.h"

namespace annulus {

class Callbacks {
 public:
  struct Callback {
    annulus_done_fn function = nullptr;
    void* context = nullptr;
    Code code = Code::kOk;
  };

  Callbacks() = default;
  // Calls what remains, then ends the thread. Not on that thread.
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  // Starts the thread if it is not running; before the first Add. Errors: kSystem.
  Status Start();
  // Has the function called, after those added before.
  void Add(const Callback& callback);
  // As the destructor; nothing is added later.
  void Finish();

  // Whether the calling thread is in a callback.
  bool IsThisThread() const { return id_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Callback> waiting_;
  bool finishing_ = false;
  std::atomic<std::thread::id> id_{};
  std::thread thread_;
};

}  // namespace annulus
