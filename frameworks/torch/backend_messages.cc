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

// Messages match by their order. Two tags would be taken for each other, so there is one.
static const at::Tensor& MessageOf(const std::vector<at::Tensor>& tensors, int tag) {
  TORCH_CHECK(tensors.size() == 1, "Annulus: a message is one tensor, not ", tensors.size());
  TORCH_CHECK(tag == 0, "Annulus: messages have no tags yet; tag is ", tag);
  return tensors[0];
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  CheckTensor(tensor);
  CheckRank(peer, "the receiver");
  Job job(c10d::OpType::SEND, "annulus:send");
  const at::Tensor own = job.Read(tensor);
  job.Add(ANNULUS_CALL_SEND, own.data_ptr(), nullptr, BytesOf(own)).root = peer;
  return Start(std::move(job), timeout_, true);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  CheckTensor(tensor);
  CheckRank(peer, "the sender");
  Job job(c10d::OpType::RECV, "annulus:recv");
  const at::Tensor own = job.Write(tensor);
  job.Add(ANNULUS_CALL_RECV, nullptr, own.data_ptr(), BytesOf(own)).root = peer;
  job.set_result({tensor});
  job.set_source(peer);
  return Start(std::move(job), timeout_, true);
}

Backend::WorkPtr Backend::recvAnysource(Tensors&, int) {
  TORCH_CHECK(false, "Annulus: a receive must name its sender (src); receives from any rank are not built yet");
}

// Through the store, so that a rank that does not come leaves the communicator as it is.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const std::chrono::milliseconds limit = opts.timeout.count() > 0 ? opts.timeout : timeout_;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::string base = "annulus/monitored_barrier/" + std::to_string(monitored_barriers_++) + "/";
  const c10::intrusive_ptr<c10d::Store> store = store_->clone();
  const auto passes = [&](const std::string& key) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      store->wait({base + key}, std::max(left, std::chrono::milliseconds(1)));
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
    store->set(base + std::to_string(rank_), std::string("here"));
    TORCH_CHECK(passes("go"), failed("Rank 0"), ": it did not let this rank go on");
    return;
  }
  std::string missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (passes(std::to_string(rank))) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    if (!wait_all_ranks) TORCH_CHECK(false, failed("Rank " + missing));
  }
  TORCH_CHECK(missing.empty(), failed("Ranks " + missing));
  store->set(base + "go", std::string("all are here"));
}

}  // namespace annulus_torch
