// The calls of the backend between two ranks, and the barriers.
#include <algorithm>
#include <string>
#include <utility>

#include "frameworks/torch/backend.h"

namespace annulus_torch {

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  Job job(c10d::OpType::BARRIER, "annulus:barrier");
  job.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, {});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

static const at::Tensor& MessageOf(const std::vector<at::Tensor>& tensors, int tag) {
  TORCH_CHECK(tensors.size() == 1, "Annulus: a message is one tensor, not ", tensors.size());
  TORCH_CHECK(tag >= 0, "Annulus: the tag of a message is 0 or more, not ", tag);
  return tensors[0];
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  CheckTensor(tensor);
  CheckRank(peer, "the receiver");
  Job job(c10d::OpType::SEND, "annulus:send");
  const at::Tensor own = job.Read(tensor);
  annulus_call_t& call = job.Add(ANNULUS_CALL_SEND, own.data_ptr(), nullptr, BytesOf(own));
  call.root = peer;
  call.tag = tag;
  return Start(std::move(job), timeout_, true);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  CheckRank(peer, "the sender");
  return Receive(tensors, peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) { return Receive(tensors, ANNULUS_ANY_PEER, tag); }

Backend::WorkPtr Backend::Receive(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  CheckTensor(tensor);
  Job job(c10d::OpType::RECV, "annulus:recv");
  const at::Tensor own = job.Write(tensor);
  job.AddReceive(own.data_ptr(), BytesOf(own), peer, tag);
  job.set_result({tensor});
  return Start(std::move(job), timeout_, true);
}

// Through the store, so that a rank that does not come leaves the communicator as it is. Rank 0 waits until all others
// have left a key, and then lets each go by another one. Both have the number of barriers that the rank has passed, so
// a rank that missed one fits into the next; a rank that gives up takes its key back.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const std::chrono::milliseconds limit = opts.timeout.count() > 0 ? opts.timeout : timeout_;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const c10::intrusive_ptr<c10d::Store> store = store_->clone();
  passed_barriers_.resize(size_);
  const auto key = [&](const char* what, int rank) {
    return "annulus/monitored_barrier/" + std::to_string(rank) + "/" + std::to_string(passed_barriers_[rank]) + what;
  };
  const auto comes = [&](const std::string& awaited) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      store->wait({awaited}, std::max(left, std::chrono::milliseconds(1)));
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  };
  const auto failed = [&](const std::string& ranks) {
    return "[Rank " + std::to_string(rank_) + "]: " + ranks + " failed to pass monitoredBarrier in " +
           std::to_string(limit.count()) + " ms";
  };
  if (rank_ != 0) {
    store->set(key("/here", rank_), std::string("1"));
    const bool goes = comes(key("/go", rank_));
    if (!goes) store->deleteKey(key("/here", rank_));
    TORCH_CHECK(goes, failed("Rank 0"), ": it did not let this rank go on");
    ++passed_barriers_[rank_];
    return;
  }
  std::string missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (comes(key("/here", rank))) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    TORCH_CHECK(wait_all_ranks, failed("Rank " + missing));
  }
  TORCH_CHECK(missing.empty(), failed("Ranks " + missing));
  for (int rank = 1; rank < size_; ++rank) {
    store->set(key("/go", rank), std::string("1"));
    ++passed_barriers_[rank];
  }
}

}  // namespace annulus_torch
