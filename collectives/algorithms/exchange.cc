#include "collectives/algorithms/exchange.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {

Exchange::Exchange(int rank, int nranks, const Links* links, int most_sends)
    : rank_(rank), nranks_(nranks), links_(links), sends_(most_sends) {
  ANNULUS_CHECK(nranks > 1);
  endpoints_.reserve(static_cast<size_t>(most_sends) + 2);
}

size_t Exchange::SendsBytes(int most_sends) {
  return static_cast<size_t>(most_sends) * (sizeof(Outgoing) + sizeof(Endpoint*));
}

void Exchange::Start(const ScheduleParams& /*params*/, const Work* work) {
  ANNULUS_CHECK(done());
  work_ = work;
  submission_ = Submission();
  slot_ = nullptr;
  sends_posted_ = 0;
  awaited_ = unsent_ = -1;
  submitted_ = swap_posted_ = recv_posted_ = verified_ = false;
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
  return Status();
}

int Exchange::AwaitedPeer() const {
  if (unsent_ >= 0) return unsent_;
  if (awaited_ >= 0) return awaited_;
  for (size_t i = 0; i < sends_posted_ && !done(); ++i) {
    if (sends_[i].send.code != Code::kOk) return sends_[i].to;
  }
  return -1;
}

bool Exchange::WaitsFor(const Endpoint* endpoint) const {
  if (done()) return false;
  for (size_t i = 0; i < sends_posted_; ++i) {
    if (sends_[i].send.code != Code::kOk && links_->At(sends_[i].to, 0) == endpoint) return true;
  }
  return recv_posted_ && recv_.code != Code::kOk && links_->At(awaited_, 0) == endpoint;
}

void Exchange::FindEndpoints() {
  endpoints_.clear();
  const auto add = [this](int rank) {
    Endpoint* const endpoint = links_->At(rank, 0);
    if (std::find(endpoints_.begin(), endpoints_.end(), endpoint) == endpoints_.end()) endpoints_.push_back(endpoint);
  };
  if (awaited_ >= 0) add(awaited_);
  if (unsent_ >= 0) add(unsent_);
  for (size_t i = 0; i < sends_posted_; ++i) {
    if (sends_[i].send.code != Code::kOk) add(sends_[i].to);
  }
}

Status Exchange::Run(const SliceOp& op, DomainQueue* queue, bool* complete) {
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

Status Exchange::Receive(int from, int message, size_t bytes, bool* moved, bool* complete) {
  awaited_ = from;
  if (!recv_posted_) {
    recv_ = Recv();
    recv_.capacity = static_cast<uint32_t>(bytes);
    Status posted = links_->At(from, 0)->PostRecv(&recv_);
    if (!posted.ok() && !posted.would_block()) return posted;
    recv_posted_ = posted.ok();
    if (recv_posted_) *moved = true;
  }
  if (recv_posted_ && recv_.started && !verified_) {
    ANNULUS_RETURN_IF_ERROR(CheckSlice({TagOf(message), recv_.capacity}, {recv_.tag, recv_.bytes}, from));
    verified_ = true;
  }
  *complete = verified_ && recv_.code == Code::kOk;
  return Status();
}

void Exchange::FinishReceive() {
  work_->monitor->Received(awaited_, recv_.bytes);
  links_->At(awaited_, 0)->Release(&recv_);
  awaited_ = -1;
  recv_posted_ = verified_ = false;
}

bool Exchange::SendsComplete() {
  for (size_t i = 0; i < sends_posted_; ++i) {
    if (sends_[i].send.code != Code::kOk) return false;
  }
  for (size_t i = 0; i < sends_posted_; ++i) work_->monitor->Sent(sends_[i].to, sends_[i].send.bytes);
  return true;
}

}  // namespace annulus
