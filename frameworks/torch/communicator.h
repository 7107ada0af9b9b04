// Communicator: a communicator of Annulus whose ranks met through PyTorch's store.
//
// Threads: any; made and destroyed by one.
#pragma once

#include <annulus.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace annulus_torch {

class Communicator {
 public:
  // Joins the others, which do the same over the same store, within `timeout`. Errors: throws DistBackendError.
  Communicator(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);
  // Ends pending work, and waits for the callbacks.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  annulus_comm_t* get() const { return comm_; }

 private:
  annulus_comm_t* comm_ = nullptr;
};

// As annulus_call_t has it.
int64_t TimeoutMs(std::chrono::milliseconds timeout);

}  // namespace annulus_torch
