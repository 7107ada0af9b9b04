// StreamWork: a call in a CUDA stream, as PyTorch sees it. `wait` makes the current stream wait for the call and
// returns; so does the future. The host learns how the call ended from an Outcome.
//
// Threads: any, once Enqueued has been called.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "frameworks/torch/work.h"

namespace annulus_torch {

// How the ranks' part of a call has ended. The communicator's thread drives the calls that streams wait for, so it must
// not call the driver, which may block: it gets this, and no tensors or events, which call it when they are destroyed.
class Outcome {
 public:
  // Null: success.
  void End(std::exception_ptr failure);
  bool has_ended() const;
  std::exception_ptr failure() const;
  // False: not ended within that time, 0 meaning any.
  bool Wait(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::exception_ptr failure_;
};

class StreamWork final : public Work {
 public:
  // `blocks`: `wait` returns when the call is done, and throws what failed.
  // `is_captured`: the stream is captured into a CUDA graph, whose launches make the call. For the host it is done
  // then, whatever `blocks` says, and `wait` only joins the call's stream with the current one, within the capture.
  StreamWork(About about, const c10::Stream& stream, bool blocks, bool is_captured);

  const std::shared_ptr<Outcome>& outcome() const { return outcome_; }
  // All of the call is in the stream, which is the current one.
  void OnEnqueued();

  // Whether the result is there.
  bool isCompleted() override;
  // Whether nothing has failed so far.
  bool isSuccess() const override { return outcome_->failure() == nullptr; }
  std::exception_ptr exception() const override { return outcome_->failure(); }
  // With a timeout it blocks as long, and throws unless the call is done then.
  bool wait(std::chrono::milliseconds timeout) override;
  // Makes the current stream wait. Errors: throws where only one of call and stream is captured.
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  // To be used in streams that wait for the call.
  std::vector<at::Tensor> result() override { return about_.outputs; }
  // Is complete, unless the call has failed by now: what uses its value waits in a stream.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  c10::intrusive_ptr<c10::ivalue::Future> NewFuture() const;

  const c10::Stream stream_;
  const bool blocks_;
  const bool is_captured_;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  c10::Event end_;  // Comes after the call in its stream. The host must not ask one that is captured.
};

}  // namespace annulus_torch
