#include "collectives/algorithms/exchange.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {

Exchange::Exchange(int rank, int nranks, const Links* links, int most_sends)
    : rank_(rank), nranks_(nranks), links_(links), inbox_(links), outbox_(links, most_sends) {
  ANNULUS_CHECK(nranks > 1);
  endpoints_.reserve(static_cast<size_t>(most_sends) + 2);
}

size_t Exchange::SendsBytes(int most_sends) {
  return Outbox::MemoryBytes(most_sends) + static_cast<size_t>(most_sends) * sizeof(Endpoint*);
}

void Exchange::Start(const ScheduleParams& /*params*/, const Work* work) {
  ANNULUS_CHECK(done());
  work_ = work;
  submission_ = Submission();
  submitted_ = swap_posted_ = false;
  inbox_.Reset();
  outbox_.Reset();
  Begin();
  FindEndpoints();
}

Status Exchange::Advance(bool* moved) {
  for (bool stepped = true; stepped && !done();) {
    stepped = false;
    ANNULUS_RETURN_IF_ERROR(Step(&stepped));
    if (stepped) *moved = true;
  }
  FindEndpoints();
  return outbox_.Outcome();
}

int Exchange::AwaitedPeer() const {
  if (outbox_.unsent() >= 0) return outbox_.unsent();
  if (inbox_.awaited() >= 0) return inbox_.awaited();
  return done() ? -1 : outbox_.FirstPending();
}

bool Exchange::WaitsFor(const Endpoint* endpoint) const {
  if (done()) return false;
  bool waits = inbox_.waits() && links_->At(inbox_.awaited(), 0) == endpoint;
  outbox_.ForPending([&](int rank) { waits |= links_->At(rank, 0) == endpoint; });
  return waits;
}

void Exchange::FindEndpoints() {
  endpoints_.clear();
  const auto add = [this](int rank) {
    Endpoint* const endpoint = links_->At(rank, 0);
    if (std::find(endpoints_.begin(), endpoints_.end(), endpoint) == endpoints_.end()) endpoints_.push_back(endpoint);
  };
  if (inbox_.awaited() >= 0) add(inbox_.awaited());
  if (outbox_.unsent() >= 0) add(outbox_.unsent());
  outbox_.ForPending(add);
}

Status Exchange::AdvanceOp(const SliceOp& op, DomainQueue* queue, bool* complete) {
  if (!submitted_ && op.count > 0) {
    Status submitted = submission_.Submit(queue, op);
    if (submitted.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    submitted_ = true;
  }
  if (submission_.pending()) {
    ANNULUS_RETURN_IF_ERROR(submission_.Poll());
    if (submission_.pending()) return Status();
  }
  submitted_ = false;
  *complete = true;
  return Status();
}

SliceOp Exchange::Copy(std::byte* to, const std::byte* from, size_t elements) const {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = from;
  op.num_sources = 1;
  op.count = elements;
  op.type = work_->type;
  op.op = work_->op;
  return op;
}

bool Exchange::SendsComplete() {
  if (outbox_.FirstPending() >= 0) return false;
  outbox_.CountAll(work_->monitor);
  return true;
}

}  // namespace annulus
