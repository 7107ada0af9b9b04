#include "frameworks/torch/stream_work.h"

#include <ATen/core/jit_type.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "frameworks/torch/versions.h"

namespace annulus_torch {

void Outcome::End(std::exception_ptr failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = std::move(failure);
  has_ended_ = true;
  ended_.notify_all();
}

bool Outcome::has_ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_ended_;
}

std::exception_ptr Outcome::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool Outcome::Wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_ended = [this] { return has_ended_; };
  if (timeout != kNoTimeout) return ended_.wait_for(lock, timeout, has_ended);
  ended_.wait(lock, has_ended);
  return true;
}

StreamWork::StreamWork(About about, const c10::Stream& stream, bool blocks, bool is_captured)
    : Work(std::move(about)), stream_(stream), blocks_(blocks), is_captured_(is_captured), end_(stream.device_type()) {}

void StreamWork::OnEnqueued() {
  end_.record(stream_);
  future_ = NewFuture();
  future_->markCompleted(c10::IValue(about_.outputs));  // Records an event in the current stream.
  if (recordFunctionEndCallback_ != nullptr) std::exchange(recordFunctionEndCallback_, nullptr)();
}

bool StreamWork::isCompleted() {
  if (is_captured_) return true;
  return outcome_->has_ended() && (outcome_->failure() != nullptr || end_.query());
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  const bool blocks = !is_captured_ && (blocks_ || timeout != kNoTimeout);
  TORCH_CHECK_WITH(DistBackendError, !blocks || outcome_->Wait(timeout), "Annulus: ", about_.title,
                   ": not done after a timeout of ", timeout.count(), " ms");
  synchronize();  // After a failure too: what is in the stream of the call may still write its outputs.
  if (const std::exception_ptr failure = outcome_->failure()) std::rethrow_exception(failure);
  if (blocks) end_.synchronize();
  return true;
}

void StreamWork::synchronize() {
  const c10::impl::VirtualGuardImpl guard(stream_.device_type());
  const c10::Stream current = guard.getStream(stream_.device());
  const bool is_capturing = IsCapturing(guard, current);
  TORCH_CHECK(is_captured_ || !is_capturing, "Annulus: ", about_.title,
              " was not captured: wait for it before the current stream is captured into a CUDA graph");
  TORCH_CHECK(
      !is_captured_ || is_capturing, "Annulus: ", about_.title,
      " was captured into a CUDA graph: wait for it in the capture; launches of the graph are waited for in their "
      "stream");
  end_.block(current);
}

c10::intrusive_ptr<c10::ivalue::Future> StreamWork::NewFuture() const {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::vector<c10::Device>{stream_.device()});
}

c10::intrusive_ptr<c10::ivalue::Future> StreamWork::getFuture() {
  const std::exception_ptr failure = outcome_->failure();
  if (failure == nullptr) return future_;
  const auto failed = NewFuture();
  failed->setError(failure);
  return failed;
}

}  // namespace annulus_torch
