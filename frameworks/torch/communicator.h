// Communicator: a communicator of Annulus whose ranks met through PyTorch's store.
//
// Threads: any; made and closed by one.
#pragma once

#include <annulus.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace annulus_torch {

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins the others, which do the same over the same store, within `timeout`. Errors: throws DistBackendError.
  Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);
  ~Communicator() { Close(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  annulus_comm_t* get() const { return comm_; }

  // Ends pending work, and waits for the callbacks and for threads that have it in use. Does nothing in a forked child,
  // which has none of the threads.
  void Close();
  // For threads that wait for calls: while the result owns its lock, the communicator stays. Does not block; owns no
  // lock once it is being closed, and in a forked child.
  std::shared_lock<std::shared_mutex> Use() const;

  // The communicator, for a call: it stays while this lives.
  class Held {
   public:
    // Errors: throws DistBackendError once it is being closed. In a forked child Annulus refuses the call.
    explicit Held(const Communicator& comm);
    const Communicator& operator*() const { return comm_; }
    const Communicator* operator->() const { return &comm_; }

   private:
    const Communicator& comm_;
    const std::shared_lock<std::shared_mutex> in_use_;
  };

 private:
  const pid_t process_ = getpid();
  mutable std::shared_mutex use_;
  annulus_comm_t* comm_ = nullptr;  // Null once closed.
};

// As annulus_call_t has it.
int64_t TimeoutMs(std::chrono::milliseconds timeout);

}  // namespace annulus_torch
