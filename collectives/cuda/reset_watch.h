// ResetWatch: a thread that looks after calls in streams: whether their GPU was reset meanwhile. Whoever drives a
// communicator calls nothing of the driver while it waits for a stream, since that might wait for a gate; and a stream
// that is gone never comes.
//
// It sleeps while there is nothing to look after.
//
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace annulus {

class ResetWatch {
 public:
  // `look` returns whether there is something to look after further. It is called in the thread.
  explicit ResetWatch(std::function<bool()> look) : look_(std::move(look)) {}
  // Waits for a look that is under way.
  ~ResetWatch() { Stop(); }
  ResetWatch(const ResetWatch&) = delete;
  ResetWatch& operator=(const ResetWatch&) = delete;

  // There is something to look after. Starts the thread, if it can; without one nobody looks.
  void Wake() {
    if (is_asleep_.load(std::memory_order_seq_cst)) WakeNow();
  }
  void Stop();

 private:
  void WakeNow();
  void Run();

  const std::function<bool()> look_;
  std::mutex mutex_;  // Not held in look_.
  std::condition_variable changed_;
  std::atomic<bool> is_asleep_{true};
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace annulus
