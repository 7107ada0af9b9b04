// Pool: threads that complete futures. A callback of a future may wait for another collective, even for another
// callback, so there is always a thread more than callbacks that wait: one is started when none is idle, and ends when
// there was nothing to do for a while.
//
// Threads: Post from any.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace annulus_torch {

class Pool {
 public:
  // The process's only one. Never destroyed: its threads may outlast main.
  static Pool& OfProcess();

  // Runs `task` soon, on a thread of the pool.
  void Post(std::function<void()> task);

 private:
  // Serves tasks on the thread `self` until there are none for a while.
  void Serve(std::list<std::thread>::iterator self);

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;                 // Number of threads that wait for a task.
  std::list<std::thread> threads_;  // Those that serve.
  std::list<std::thread> ended_;    // Those that are to be joined.
};

}  // namespace annulus_torch
