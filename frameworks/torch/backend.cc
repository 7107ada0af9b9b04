// Creation and end of the backend, and the calls on single tensors. backend_lists.cc has those on lists of tensors,
// backend_messages.cc those between two ranks and the barriers.
#include "frameworks/torch/backend.h"

#include <algorithm>
#include <utility>

#include "frameworks/torch/failure.h"

namespace annulus_torch {

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                 bool wait_blocks)
    : c10d::Backend(rank, size),
      store_(store),
      timeout_(timeout),
      wait_blocks_(wait_blocks),
      comm_(std::make_shared<Communicator>(store, rank, size, timeout)),
      monitored_barrier_(store, rank, size) {
  init();
}

Backend::~Backend() { Leave(); }

// Waits for callbacks and other threads, which may need the interpreter's lock to free tensors that Python has given
// up.
void Backend::Leave() {
  const WithoutGil unlocked;
  comm_->Close();
}

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<Options>("annulus", timeout_);
}

c10d::ErrorType Backend::getError() {
  const auto in_use = comm_->Use();
  if (!in_use.owns_lock()) return c10d::ErrorType::SUCCESS;
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  annulus_comm_verdict(comm_->get(), &error);
  switch (error.status) {
    case ANNULUS_OK:
      return c10d::ErrorType::SUCCESS;
    case ANNULUS_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case ANNULUS_PEER_LOST:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  const auto in_use = comm_->Use();
  if (in_use.owns_lock()) annulus_comm_abort(comm_->get(), "abort of the process group");
}

void Backend::shutdown() { Leave(); }

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::ranges::find(ranks, rank_);
  if (own == ranks.end()) return nullptr;
  const std::chrono::milliseconds timeout = opts == nullptr ? timeout_ : opts->timeout;
  return c10::make_intrusive<Backend>(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                                      timeout, wait_blocks_);
}

void Backend::CheckRank(int64_t rank, const char* what) const {
  TORCH_CHECK(rank >= 0 && rank < size_, "Annulus: ", what, " is rank ", rank, " of a group of ", size_);
}

Backend::WorkPtr Backend::Start(Job job, std::chrono::milliseconds timeout, bool async) {
  const uint64_t sequence = ++sequence_;
  const std::chrono::milliseconds limit = LimitOf(timeout);
  const Communicator::Held comm = Comm();  // Another thread may shut the group down meanwhile.
  if (job.device().is_cuda()) {
    return std::move(job).Enqueue(*comm, rank_, sequence, limit, async ? &streams_ : nullptr, wait_blocks_);
  }
  if (!async) return job.Run(*comm, rank_, sequence, limit);
  return std::move(job).Submit(*comm, rank_, sequence, limit);
}

static at::Tensor& OnlyOne(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "Annulus: a call takes one tensor, not ", tensors.size());
  return tensors[0];
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  at::Tensor& tensor = OnlyOne(tensors);
  CheckRank(opts.rootRank, "the root");
  Job job(c10d::OpType::BROADCAST, "annulus:broadcast");
  job.Use(tensor);
  const bool is_root = opts.rootRank == rank_;
  const at::Tensor own = is_root ? job.Read(tensor) : job.Write(tensor);
  job.Add(ANNULUS_CALL_BROADCAST, own.data_ptr(), own.data_ptr(), BytesOf(own)).root = static_cast<int>(opts.rootRank);
  job.set_inputs({tensor});
  job.set_result({tensor});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  at::Tensor& tensor = OnlyOne(tensors);
  if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, opts);
  Job job(c10d::OpType::ALLREDUCE, "annulus:all_reduce");
  job.Use(tensor);
  const Reduction reduction = ReductionOf(tensor.scalar_type(), opts.reduceOp);
  const at::Tensor own = job.Write(tensor, true);
  job.AddReduction(ANNULUS_CALL_ALLREDUCE, own.data_ptr(), own.data_ptr(), own.numel(), reduction);
  job.set_inputs({tensor});
  job.set_result({tensor});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  Job job(c10d::OpType::ALLREDUCE_COALESCED, "annulus:all_reduce");
  job.Use(tensors);
  for (const at::Tensor& tensor : tensors) {
    const Reduction reduction = ReductionOf(tensor.scalar_type(), opts.reduceOp);
    const at::Tensor own = job.Write(tensor, true);
    job.AddReduction(ANNULUS_CALL_ALLREDUCE, own.data_ptr(), own.data_ptr(), own.numel(), reduction);
  }
  job.set_inputs(tensors);
  job.set_result(tensors);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  at::Tensor& tensor = OnlyOne(tensors);
  CheckRank(opts.rootRank, "the root");
  Job job(c10d::OpType::REDUCE, "annulus:reduce");
  job.Use(tensor);
  const Reduction reduction = ReductionOf(tensor.scalar_type(), opts.reduceOp);
  const bool is_root = opts.rootRank == rank_;
  const at::Tensor own = is_root ? job.Write(tensor, true) : job.Read(tensor);
  void* const recv = is_root ? own.data_ptr() : nullptr;
  job.AddReduction(ANNULUS_CALL_REDUCE, own.data_ptr(), recv, own.numel(), reduction).root =
      static_cast<int>(opts.rootRank);
  job.set_inputs({tensor});
  job.set_result({tensor});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

void Backend::AddAllgather(Job* job, const at::Tensor& output, const at::Tensor& input) {
  job->Use({output, input});
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "Annulus: all_gather from ", input.scalar_type(), " to ",
              output.scalar_type());
  TORCH_CHECK(output.numel() == input.numel() * size_, "Annulus: all_gather of ", input.numel(),
              " elements from each of ", size_, " ranks does not fit into ", output.numel());
  const at::Tensor own = job->Read(input);
  const at::Tensor all = job->Write(output);
  job->Add(ANNULUS_CALL_ALLGATHER, own.data_ptr(), all.data_ptr(), BytesOf(own));
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Job job(c10d::OpType::_ALLGATHER_BASE, "annulus:_all_gather_base");
  AddAllgather(&job, output, input);
  job.set_inputs({input});
  job.set_result({output});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "Annulus: all_gather of ", inputs.size(), " tensors into ",
              outputs.size());
  Job job(c10d::OpType::COALESCED, "annulus:all_gather_into_tensor_coalesced");
  for (size_t i = 0; i < inputs.size(); ++i) AddAllgather(&job, outputs[i], inputs[i]);
  job.set_inputs(inputs);
  job.set_result(outputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  CheckRank(opts.rootRank, "the root");
  const bool is_root = opts.rootRank == rank_;
  Job job(c10d::OpType::GATHER, "annulus:gather");
  job.Use(input);
  const at::Tensor own = job.Read(input);
  void* all = nullptr;
  if (is_root) {
    job.Use(output);
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), "Annulus: gather from ", input.scalar_type(), " to ",
                output.scalar_type());
    TORCH_CHECK(output.numel() == input.numel() * size_, "Annulus: gather of ", input.numel(),
                " elements from each of ", size_, " ranks does not fit into ", output.numel());
    all = job.Write(output).data_ptr();
    job.set_result({output});
  }
  job.Add(ANNULUS_CALL_GATHER, own.data_ptr(), all, BytesOf(own)).root = static_cast<int>(opts.rootRank);
  job.set_inputs({input});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

void Backend::AddReduceScatter(Job* job, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) {
  job->Use({output, input});
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "Annulus: reduce_scatter from ", input.scalar_type(), " to ",
              output.scalar_type());
  TORCH_CHECK(input.numel() == output.numel() * size_, "Annulus: reduce_scatter of ", input.numel(),
              " elements gives each of ", size_, " ranks more or fewer than ", output.numel());
  const Reduction reduction = ReductionOf(input.scalar_type(), op);
  const at::Tensor all = job->Read(input);
  const at::Tensor own = job->Write(output);
  job->AddReduction(ANNULUS_CALL_REDUCE_SCATTER, all.data_ptr(), own.data_ptr(), own.numel(), reduction);
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  Job job(c10d::OpType::_REDUCE_SCATTER_BASE, "annulus:_reduce_scatter_base");
  AddReduceScatter(&job, output, input, opts.reduceOp);
  job.set_inputs({input});
  job.set_result({output});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == inputs.size(), "Annulus: reduce_scatter of ", inputs.size(), " tensors into ",
              outputs.size());
  Job job(c10d::OpType::COALESCED, "annulus:reduce_scatter_tensor_coalesced");
  for (size_t i = 0; i < inputs.size(); ++i) AddReduceScatter(&job, outputs[i], inputs[i], opts.reduceOp);
  job.set_inputs(inputs);
  job.set_result(outputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

}  // namespace annulus_torch
