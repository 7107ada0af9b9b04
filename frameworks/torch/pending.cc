#include "frameworks/torch/pending.h"

#include <utility>

#include "frameworks/torch/failure.h"

namespace annulus_torch {

Pending::Pending(const Communicator& comm, const char* title, End end)
    : comm_(comm.shared_from_this()), title_(title), end_(std::move(end)) {}

annulus_status_t Pending::Submit(std::vector<annulus_call_t>& calls, bool drivable) {
  for (annulus_call_t& call : calls) {
    call.context = this;
    call.done = Done;
  }
  left_ = calls.size();
  until_done_ = shared_from_this();
  const annulus_status_t status =
      annulus_submit(comm_->get(), calls.data(), calls.size(), drivable ? &request_ : nullptr);
  if (status != ANNULUS_OK) until_done_.reset();
  return status;
}

void Pending::Drive(std::optional<std::chrono::milliseconds> timeout) {
  const WithoutGil unlocked;  // PyTorch asks with the lock whether a work is completed.
  std::exception_ptr failure;
  {
    const auto in_use = comm_->Use();
    if (!in_use.owns_lock() || is_claimed_.load()) return;
    const annulus_status_t status = annulus_request_wait(request_, timeout.has_value() ? timeout->count() : -1);
    // Where another thread has freed the request meanwhile, the status is not that of the calls.
    if (status == ANNULUS_IN_PROGRESS || is_claimed_.load()) return;
    if (status != ANNULUS_OK) failure = Failure(status, title_);
    if (!Claim()) return;
  }
  CallEnd(failure);
}

void Pending::Done(void* context, annulus_status_t status) {
  auto* const self = static_cast<Pending*>(context);
  if (status != ANNULUS_OK && self->failure_ == nullptr && !self->is_claimed_.load()) {
    self->failure_ = FailureInCallback(self->comm_->get(), status, self->title_);
  }
  if (self->left_.fetch_sub(1) > 1) return;
  const std::shared_ptr<Pending> last = std::move(self->until_done_);
  if (last->Claim()) last->CallEnd(last->failure_);
}

bool Pending::Claim() {
  if (is_claimed_.exchange(true)) return false;
  annulus_request_free(request_);
  return true;
}

}  // namespace annulus_torch
