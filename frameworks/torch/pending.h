// Pending: calls under way that one Work stands for. A thread that waits for them drives them, sees their end and does
// what is left to do; where nobody waits, the communicator's threads do. So a waiter need not be woken.
//
// Threads: any, once Submit has returned.
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "frameworks/torch/communicator.h"

namespace annulus_torch {

// A thread without Python's lock as long as this lives, whether or not it came with it: what takes long, or may wait
// for a thread that needs the lock.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) unlocked_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> unlocked_;
};

class Pending : public std::enable_shared_from_this<Pending> {
 public:
  // Gets what failed or null. Must not throw.
  using End = std::function<void(std::exception_ptr)>;

  Pending(const Communicator& comm, const char* title, End end);

  // Queues the calls. `end` is called once when all have ended, by the thread that sees it first, and then destroyed;
  // it keeps what the calls use. `drivable`: Drive may be called. Errors: those of annulus_submit; then it is not
  // called.
  annulus_status_t Submit(std::vector<annulus_call_t>& calls, bool drivable);
  // Drives the calls until they have ended, or for that long; 0: by one step. Another thread may still be in `end`
  // then. Does nothing once the communicator is being closed, which ends them.
  void Drive(std::optional<std::chrono::milliseconds> timeout);

 private:
  static void Done(void* context, annulus_status_t status);
  // Whether the calling thread is the one to call `end_`. The request is freed then.
  bool Claim();
  void CallEnd(const std::exception_ptr& failure) { std::exchange(end_, nullptr)(failure); }

  const std::shared_ptr<const Communicator> comm_;
  const char* const title_;
  End end_;
  annulus_request_t* request_ = nullptr;  // The request of all calls; null: not drivable.
  std::shared_ptr<Pending> until_done_;   // Itself, until the callbacks of all calls have been called.
  std::atomic<size_t> left_{0};           // Callbacks that have not been called.
  std::exception_ptr failure_;            // The first one that a callback was told. For callbacks, which are in turn.
  std::atomic<bool> is_claimed_{false};
};

}  // namespace annulus_torch
