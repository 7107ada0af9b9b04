// The calls of the backend on lists of tensors. A list whose tensors are the consecutive parts of one buffer is used as
// that buffer; others go through a buffer of the job's.
#include <utility>

#include "frameworks/torch/backend.h"

namespace annulus_torch {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<int64_t> SizesOf(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

int64_t Sum(const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

bool AreOneBuffer(const Tensors& tensors) {
  const char* next = tensors.empty() ? nullptr : static_cast<const char*>(tensors[0].data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.scalar_type() != tensors[0].scalar_type() || tensor.data_ptr() != next) {
      return false;
    }
    next += tensor.nbytes();
  }
  return true;
}

// Memory into which the tensors' parts are written, one behind the other.
void* WriteAll(Job* job, const Tensors& tensors, const at::Tensor& like) {
  if (AreOneBuffer(tensors)) {
    for (const at::Tensor& tensor : tensors) job->Write(tensor);
    return tensors.empty() ? nullptr : tensors[0].data_ptr();
  }
  const at::Tensor flat = job->Scratch(Sum(SizesOf(tensors)), like);
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    job->CopyAtEnd(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return flat.data_ptr();
}

// Memory with the tensors' values, one behind the other.
const void* ReadAll(Job* job, const Tensors& tensors, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  if (AreOneBuffer(tensors)) {
    for (const at::Tensor& tensor : tensors) job->Read(tensor);
    return tensors.empty() ? nullptr : tensors[0].data_ptr();
  }
  const at::Tensor flat = job->Scratch(Sum(SizesOf(tensors)), like);
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, begin, tensor.numel()).copy_(tensor.reshape({-1}));
    begin += tensor.numel();
  }
  return flat.data_ptr();
}

bool AllEqual(const std::vector<int64_t>& sizes) {
  for (const int64_t size : sizes) {
    if (size != sizes[0]) return false;
  }
  return true;
}

// That all have one type. Neither list is empty.
void CheckTypes(const char* what, const Tensors& from, const Tensors& to) {
  const auto check = [what](at::ScalarType source, at::ScalarType target) {
    TORCH_CHECK(source == target, "Annulus: ", what, " from ", source, " to ", target);
  };
  for (const at::Tensor& tensor : from) check(tensor.scalar_type(), to[0].scalar_type());
  for (const at::Tensor& tensor : to) check(from[0].scalar_type(), tensor.scalar_type());
}

}  // namespace

static void AddListAllgather(Job* job, const Tensors& outputs, const at::Tensor& input, int size, int rank) {
  TORCH_CHECK(static_cast<int>(outputs.size()) == size, "Annulus: all_gather into a list of ", outputs.size(),
              " tensors among ", size, " ranks");
  TORCH_CHECK(outputs[rank].numel() == input.numel(), "Annulus: all_gather of ", input.numel(),
              " elements, for which this rank's own list has ", outputs[rank].numel());
  CheckTypes("all_gather", {input}, outputs);
  const at::Tensor own = job->Read(input);
  void* const all = WriteAll(job, outputs, input);
  const std::vector<int64_t> sizes = SizesOf(outputs);
  if (AllEqual(sizes)) {
    job->Add(ANNULUS_CALL_ALLGATHER, own.data_ptr(), all, BytesOf(own));
  } else {
    job->Add(ANNULUS_CALL_ALLGATHERV, own.data_ptr(), all, BytesOf(own)).recvcounts =
        job->Sizes(sizes, input.element_size());
  }
}

Backend::WorkPtr Backend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1, "Annulus: all_gather takes one tensor and one list");
  Job job(c10d::OpType::ALLGATHER, "annulus:all_gather");
  job.Use(inputs);
  job.Use(outputs[0]);
  AddListAllgather(&job, outputs[0], inputs[0], size_, rank_);
  job.set_result(outputs[0]);
  job.set_inputs(inputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

// outputs[r][i] is rank r's inputs[i].
Backend::WorkPtr Backend::allgather_coalesced(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(static_cast<int>(outputs.size()) == size_, "Annulus: all_gather_coalesced into ", outputs.size(),
              " lists among ", size_, " ranks");
  Job job(c10d::OpType::ALLGATHER_COALESCED, "annulus:all_gather");
  job.Use(inputs);
  for (const Tensors& list : outputs) job.Use(list);
  Tensors result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensors& list : outputs) {
      TORCH_CHECK(list.size() == inputs.size(), "Annulus: all_gather_coalesced of ", inputs.size(),
                  " tensors into a list of ", list.size());
      parts.push_back(list[i]);
    }
    AddListAllgather(&job, parts, inputs[i], size_, rank_);
  }
  for (const Tensors& list : outputs) result.insert(result.end(), list.begin(), list.end());
  job.set_result(result);
  job.set_inputs(inputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  TORCH_CHECK(inputs.size() == 1, "Annulus: gather takes one tensor");
  CheckRank(opts.rootRank, "the root");
  const bool is_root = opts.rootRank == rank_;
  TORCH_CHECK(is_root ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_ : outputs.empty(),
              "Annulus: gather needs a list of ", size_, " tensors at the root, and none elsewhere");
  Job job(c10d::OpType::GATHER, "annulus:gather");
  job.Use(inputs);
  if (is_root) job.Use(outputs[0]);
  const at::Tensor own = job.Read(inputs[0]);
  void* all = nullptr;
  if (is_root) {
    for (const at::Tensor& output : outputs[0]) {
      TORCH_CHECK(output.numel() == own.numel(), "Annulus: gather of ", own.numel(), " elements into a tensor of ",
                  output.numel());
    }
    CheckTypes("gather", inputs, outputs[0]);
    all = WriteAll(&job, outputs[0], own);
    job.set_result(outputs[0]);
  }
  job.Add(ANNULUS_CALL_GATHER, own.data_ptr(), all, BytesOf(own)).root = static_cast<int>(opts.rootRank);
  job.set_inputs(inputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == 1, "Annulus: scatter takes one tensor");
  CheckRank(opts.rootRank, "the root");
  const bool is_root = opts.rootRank == rank_;
  TORCH_CHECK(is_root ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_ : inputs.empty(),
              "Annulus: scatter needs a list of ", size_, " tensors at the root, and none elsewhere");
  Job job(c10d::OpType::SCATTER, "annulus:scatter");
  job.Use(outputs);
  if (is_root) job.Use(inputs[0]);
  const at::Tensor own = job.Write(outputs[0]);
  const void* all = nullptr;
  if (is_root) {
    for (const at::Tensor& input : inputs[0]) {
      TORCH_CHECK(input.numel() == own.numel(), "Annulus: scatter of a tensor of ", input.numel(), " elements into ",
                  own.numel());
    }
    CheckTypes("scatter", inputs[0], outputs);
    all = ReadAll(&job, inputs[0], own);
    job.set_inputs(inputs[0]);
  }
  job.Add(ANNULUS_CALL_SCATTER, all, own.data_ptr(), BytesOf(own)).root = static_cast<int>(opts.rootRank);
  job.set_result(outputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
              "Annulus: reduce_scatter takes one tensor and a list of ", size_);
  const at::Tensor& output = outputs[0];
  Job job(c10d::OpType::REDUCE_SCATTER, "annulus:reduce_scatter");
  job.Use(outputs);
  job.Use(inputs[0]);
  const Reduction reduction = ReductionOf(output.scalar_type(), opts.reduceOp);
  const std::vector<int64_t> sizes = SizesOf(inputs[0]);
  TORCH_CHECK(sizes[rank_] == output.numel(), "Annulus: reduce_scatter of a part of ", sizes[rank_],
              " elements into a tensor of ", output.numel());
  CheckTypes("reduce_scatter", inputs[0], outputs);
  const void* const all = ReadAll(&job, inputs[0], output);
  const at::Tensor own = job.Write(output);
  const bool equal = AllEqual(sizes);
  annulus_call_t& call = job.AddReduction(equal ? ANNULUS_CALL_REDUCE_SCATTER : ANNULUS_CALL_REDUCE_SCATTERV, all,
                                          own.data_ptr(), own.numel(), reduction);
  if (!equal) call.sendcounts = job.Sizes(sizes, 1);
  job.set_result(outputs);
  job.set_inputs(inputs[0]);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

// The rows of each part; equal parts if none are given.
static std::vector<int64_t> SplitsOf(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "Annulus: all_to_all of ", rows, " rows among ", size, " ranks");
    return std::vector<int64_t>(size, rows / size);
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == size && Sum(splits) == rows,
              "Annulus: the split sizes of all_to_all do not add up to the tensor's ", rows, " rows");
  return splits;
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  Job job(c10d::OpType::ALLTOALL_BASE, "annulus:all_to_all");
  job.Use({output, input});
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "Annulus: all_to_all from ", input.scalar_type(), " to ",
              output.scalar_type());
  const std::vector<int64_t> to = SplitsOf(input, input_splits, size_);
  const std::vector<int64_t> from = SplitsOf(output, output_splits, size_);
  const auto row_bytes = [](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = Sum(splits);
    return rows == 0 ? 0 : tensor.nbytes() / static_cast<size_t>(rows);
  };
  const at::Tensor sent = job.Read(input);
  const at::Tensor received = job.Write(output);
  annulus_call_t& call = job.Add(ANNULUS_CALL_ALLTOALLV, sent.data_ptr(), received.data_ptr(), {});
  call.sendcounts = job.Sizes(to, row_bytes(sent, to));
  call.recvcounts = job.Sizes(from, row_bytes(received, from));
  job.set_result({output});
  job.set_inputs({input});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  TORCH_CHECK(static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_,
              "Annulus: all_to_all takes lists of ", size_, " tensors");
  Job job(c10d::OpType::ALLTOALL, "annulus:all_to_all");
  job.Use(inputs);
  job.Use(outputs);
  CheckTypes("all_to_all", inputs, outputs);
  const void* const sent = ReadAll(&job, inputs, inputs[0]);
  void* const received = WriteAll(&job, outputs, inputs[0]);
  annulus_call_t& call = job.Add(ANNULUS_CALL_ALLTOALLV, sent, received, {});
  call.sendcounts = job.Sizes(SizesOf(inputs), inputs[0].element_size());
  call.recvcounts = job.Sizes(SizesOf(outputs), inputs[0].element_size());
  job.set_result(outputs);
  job.set_inputs(inputs);
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

}  // namespace annulus_torch
