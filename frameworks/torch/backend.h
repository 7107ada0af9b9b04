// Backend: the collectives of torch.distributed over Annulus. On CPU tensors a call with asyncOp false is done by the
// thread that makes it, any other by the communicator's thread. Calls on CUDA tensors are enqueued in streams.
//
// Threads: any; ranks must agree on the order of calls.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "frameworks/torch/communicator.h"
#include "frameworks/torch/job.h"
#include "frameworks/torch/monitored_barrier.h"
#include "frameworks/torch/streams.h"

namespace annulus_torch {

class Backend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Joins the other ranks of the group, which make theirs over the same store. `wait_blocks`: works on CUDA tensors
  // block the host in `wait`, and throw what failed.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
          bool wait_blocks);
  ~Backend() override;

  const std::string getBackendName() const override { return "annulus"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  // For sparse tensors (COO) on the CPU: sums only. The ranks exchange their numbers of elements before it returns.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  // Not marked as an override: older versions of PyTorch do not ask for it.
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  // Does the job now or queues it.
  WorkPtr Start(Job job, std::chrono::milliseconds timeout, bool async);
  // The timeout of a call: its own, or the group's.
  std::chrono::milliseconds LimitOf(std::chrono::milliseconds timeout) const {
    return timeout.count() > 0 ? timeout : timeout_;
  }
  // `peer` may be any.
  WorkPtr Receive(Tensors& tensors, int peer, int tag);
  void AddAllgather(Job* job, const at::Tensor& output, const at::Tensor& input);
  void AddReduceScatter(Job* job, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);
  // Ends the communicator.
  void Leave();
  // The communicator, which stays while the result lives. Errors: throws when it was shut down.
  Communicator::Held Comm() const { return Communicator::Held(*comm_); }
  std::optional<at::Device> DeviceOf(const c10d::BarrierOptions& opts) const;
  void CheckRank(int64_t rank, const char* what) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  const bool wait_blocks_;
  const std::shared_ptr<Communicator> comm_;
  std::atomic<uint64_t> sequence_{0};  // Number of calls so far.
  MonitoredBarrier monitored_barrier_;
  Streams streams_;
};

}  // namespace annulus_torch
