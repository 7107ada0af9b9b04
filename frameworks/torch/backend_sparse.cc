// Sums of sparse tensors. The ranks first tell each other how many elements they have, which is waited for, since the
// sizes of the second exchange follow from it: that of indices and values. Every rank then adds up the same parts in
// the order of the ranks.
#include <algorithm>
#include <utility>

#include "frameworks/torch/backend.h"
#include "frameworks/torch/failure.h"

namespace annulus_torch {
namespace {

constexpr const char* kTitle = "annulus:sparse_all_reduce";

// What ranks tell of their tensors: number of elements, type, number of sparse dimensions, number of dimensions, sizes.
constexpr int64_t kMaxDimensions = 16;
constexpr int64_t kFields = 4 + kMaxDimensions;

at::Tensor Describe(const at::Tensor& input) {
  TORCH_CHECK(input.dim() <= kMaxDimensions, "Annulus: all_reduce of a sparse tensor of ", input.dim(),
              " dimensions; there may be ", kMaxDimensions);
  at::Tensor description = at::zeros({kFields}, at::kLong);
  auto* const fields = description.mutable_data_ptr<int64_t>();
  fields[0] = input._nnz();
  fields[1] = ReductionOf(input.scalar_type(), c10d::ReduceOp::SUM).type;
  fields[2] = input.sparse_dim();
  fields[3] = input.dim();
  std::ranges::copy(input.sizes(), fields + 4);
  return description;
}

// The ranks' numbers of elements. Errors: throws when another rank's tensor differs in type or sizes; all ranks do.
std::vector<int64_t> CountsOf(const at::Tensor& descriptions, const at::Tensor& own) {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < descriptions.size(0); ++rank) {
    const at::Tensor theirs = descriptions.select(0, rank);
    TORCH_CHECK(theirs.narrow(0, 1, kFields - 1).equal(own.narrow(0, 1, kFields - 1)),
                "Annulus: all_reduce of sparse tensors of different types or sizes: rank ", rank,
                " of the group has another one than this rank");
    counts.push_back(theirs.const_data_ptr<int64_t>()[0]);
    TORCH_CHECK(counts.back() >= 0, "Annulus: rank ", rank, " of the group says that its sparse tensor has ",
                counts.back(), " elements");
  }
  return counts;
}

// Adds the parts of all ranks to the job: of each rank as many rows as `counts` has. Returns where they arrive.
at::Tensor GatherRows(Job* job, const at::Tensor& own, const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::vector<int64_t> sizes = own.sizes().vec();
  const int64_t row_bytes = own.element_size() * c10::multiply_integers(sizes.begin() + 1, sizes.end());
  sizes[0] = total;
  at::Tensor all = at::empty(sizes, own.options());
  annulus_call_t& call = job->Add(ANNULUS_CALL_ALLGATHERV, own.data_ptr(), all.data_ptr(), BytesOf(own));
  call.recvcounts = job->Sizes(counts, static_cast<size_t>(row_bytes));
  return all;
}

}  // namespace

Backend::WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(tensors.size() == 1, "Annulus: a call takes one tensor, not ", tensors.size());
  const at::Tensor tensor = tensors[0];
  TORCH_CHECK(tensor.device().is_cpu(), "Annulus: all_reduce of sparse tensors is there on the CPU; this one is on ",
              tensor.device());
  TORCH_CHECK(tensor.layout() == at::kSparse, "Annulus: all_reduce of a tensor that is ", tensor.layout());
  TORCH_CHECK(opts.reduceOp == c10d::ReduceOp::SUM, "Annulus: all_reduce of sparse tensors has only the reduction SUM");
  const at::AutoDispatchBelowAutograd no_autograd;
  const at::Tensor input = tensor.coalesce();
  const at::Tensor own = Describe(input);
  const at::Tensor descriptions = at::empty({size_, kFields}, at::kLong);
  annulus_call_t exchange{};
  exchange.struct_bytes = sizeof exchange;
  exchange.kind = ANNULUS_CALL_ALLGATHER;
  exchange.type = ANNULUS_INT64;
  exchange.sendbuf = own.data_ptr();
  exchange.recvbuf = descriptions.data_ptr();
  exchange.count = kFields;
  exchange.timeout_ms = TimeoutMs(LimitOf(opts.timeout));
  exchange.label = kTitle;
  Check(annulus_run(Comm()->get(), &exchange), kTitle);
  const std::vector<int64_t> counts = CountsOf(descriptions, own);

  Job job(c10d::OpType::_ALLREDUCE_SPARSE, kTitle);
  job.set_inputs({tensor});
  const at::Tensor indices = input._indices().t().contiguous();  // A row for each element.
  const at::Tensor values = input._values().contiguous();
  const at::Tensor all_indices = GatherRows(&job, indices, counts);
  const at::Tensor all_values = GatherRows(&job, values, counts);
  job.RunAtEnd([tensor, indices, values, all_indices, all_values] {
    const at::AutoDispatchBelowAutograd below;
    // PyTorch by itself does not look whether indices, which have come from other ranks, are within the tensor.
    at::_validate_sparse_coo_tensor_args(all_indices.t(), all_values, tensor.sizes());
    const auto options = all_values.options().layout(at::kSparse);
    at::Tensor target = tensor;
    target.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, tensor.sizes(), options).coalesce());
  });
  job.set_result({tensor});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

}  // namespace annulus_torch
