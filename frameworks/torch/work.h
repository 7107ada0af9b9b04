// Work: one call as PyTorch sees it: on CPU tensors, or, as a StreamWork, in a stream.
//
// Threads: any; Complete once.
#pragma once

#include <annulus.h>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "frameworks/torch/pending.h"

namespace annulus_torch {

class Work : public c10d::Work {
 public:
  struct About {
    int rank = 0;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;  // For the profiler; null: it is not shown.
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    uint64_t sequence = 0;
    std::chrono::milliseconds timeout{0};
    // What a receive got, once it is complete; null for others.
    std::shared_ptr<const annulus_received_t> received;
  };

  explicit Work(About about);

  // Ends the work; a null exception means success. Waiters go on, and the future, if anybody has asked for it, is
  // completed by a thread of the pool.
  void Complete(std::exception_ptr exception);
  // Has the threads that wait for the work drive these calls, whose end completes it. At most once, before the work is
  // given to anybody.
  void DriveBy(std::shared_ptr<Pending> calls) { calls_ = std::move(calls); }

  // Drives the calls by one step unless they have ended.
  bool isCompleted() override;
  // Drives the calls until they have ended, or up to the timeout, which is an error. Throws what failed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return about_.sequence; }
  // Not marked as an override: older versions of PyTorch do not ask for it.
  std::chrono::milliseconds getTimeout() const { return about_.timeout; }

 protected:
  About about_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // Null until somebody asks for it.

 private:
  std::shared_ptr<Pending> calls_;  // Null: there were none, or waiters cannot drive them.
};

}  // namespace annulus_torch
