#include "frameworks/torch/work.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

#include "frameworks/torch/pool.h"

namespace annulus_torch {
namespace {

void CompleteFuture(c10::ivalue::Future& future, const std::vector<at::Tensor>& outputs,
                    const std::exception_ptr& exception) {
  if (exception != nullptr) {
    future.setError(exception);
  } else {
    future.markCompleted(c10::IValue(outputs));
  }
}

}  // namespace

Work::Work(About about)
    : c10d::Work(about.rank, about.type, about.title, std::optional<std::vector<at::Tensor>>(about.inputs)),
      about_(std::move(about)) {
  about_.inputs.clear();  // Those that the call uses are kept with it.
}

void Work::Complete(std::exception_ptr exception) {
  finish(exception);
  std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_ == nullptr || future_->completed()) return;
  Pool::OfProcess().Post(
      [future = future_, outputs = about_.outputs, exception] { CompleteFuture(*future, outputs, exception); });
}

bool Work::isCompleted() {
  if (c10d::Work::isCompleted()) return true;
  if (calls_ == nullptr) return false;
  calls_->Drive(std::chrono::milliseconds(0));
  return c10d::Work::isCompleted();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (calls_ == nullptr || timeout < kNoTimeout) return c10d::Work::wait(timeout);
  if (timeout == kNoTimeout) {
    calls_->Drive(std::nullopt);
    return c10d::Work::wait(timeout);  // Another thread may have seen the end, and be about to complete the work.
  }
  const auto until = std::chrono::steady_clock::now() + timeout;
  calls_->Drive(timeout);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return c10d::Work::wait(std::max(left, std::chrono::milliseconds(1)));
}

std::vector<at::Tensor> Work::result() {
  TORCH_CHECK(isCompleted(), "Annulus: the work has no result yet; wait for it first");
  return about_.outputs;
}

int Work::sourceRank() const {
  TORCH_CHECK(about_.received != nullptr, "Annulus: only receives have a source rank");
  TORCH_CHECK(const_cast<Work*>(this)->isCompleted(), "Annulus: the receive has no source rank yet; wait for it first");
  return about_.received->source;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_ == nullptr) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    // Nobody has a callback at it yet, so none runs here.
    if (c10d::Work::isCompleted()) CompleteFuture(*future_, about_.outputs, exception());
  }
  return future_;
}

}  // namespace annulus_torch
