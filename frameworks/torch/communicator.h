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
#include <utility>
#include <vector>

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
    // Errors: throws DistBackendError once it is being closed, and in a forked child.
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

// Sums with factors, which one job has made.
//
// Threads: one at a time.
class ScaledSums {
 public:
  ScaledSums() = default;
  ScaledSums(ScaledSums&&) = default;
  ~ScaledSums() { Destroy(); }

  // Says that calls[call] is one.
  void Ask(size_t call, double factor) { asked_.emplace_back(call, factor); }
  // Makes them, one for each factor, and gives them to the calls, those of the job `title`. The ranks' numbers of them
  // must agree, so this is the last before the calls are queued: what is refused before it makes none. Errors: throws
  // DistBackendError.
  void Make(const Communicator& comm, std::vector<annulus_call_t>* calls, const char* title);
  // Calls that are queued already still use them.
  void Destroy();

 private:
  annulus_op_t Of(const Communicator& comm, double factor, const char* title);

  std::shared_ptr<const Communicator> comm_;           // Null: there are none.
  std::vector<std::pair<size_t, double>> asked_;       // Calls and their factors.
  std::vector<std::pair<double, annulus_op_t>> made_;  // By their factors.
};

// As annulus_call_t has it.
int64_t TimeoutMs(std::chrono::milliseconds timeout);

}  // namespace annulus_torch
