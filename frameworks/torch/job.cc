#include "frameworks/torch/job.h"

#include <ATen/core/grad_mode.h>

#include <exception>

#include "frameworks/torch/failure.h"

namespace annulus_torch {
void Job::Use(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "Annulus works on dense tensors; this one is ", tensor.layout());
  UseDevice(tensor.device());
}

void Job::Use(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) Use(tensor);
}

void Job::UseDevice(at::Device device) {
  TORCH_CHECK(device.is_cpu() || device.is_cuda(),
              "Annulus works on tensors on the CPU and on CUDA devices; this one is on ", device);
  TORCH_CHECK(!device_.has_value() || *device_ == device,
              "Annulus: the tensors of a call must be on one device; these are on ", *device_, " and ", device);
  device_ = device;
}

at::Tensor Job::Read(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  used_.push_back(tensor.contiguous());
  return used_.back();
}

at::Tensor Job::Write(const at::Tensor& tensor, bool keeps) {
  const at::NoGradGuard no_grad;
  if (tensor.is_contiguous()) {
    used_.push_back(tensor);
    return tensor;
  }
  const at::Tensor own = keeps ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options());
  used_.push_back(own);
  CopyAtEnd(tensor, own);
  return own;
}

at::Tensor Job::Scratch(int64_t numel, const at::Tensor& like) {
  used_.push_back(at::empty({numel}, like.options()));
  return used_.back();
}

annulus_call_t& Job::Add(annulus_kind_t kind, const void* send, void* recv, Elements elements) {
  annulus_call_t& call = calls_.emplace_back();
  call = {};
  call.struct_bytes = sizeof call;
  call.kind = kind;
  call.type = elements.type;
  call.sendbuf = send;
  call.recvbuf = recv;
  call.count = elements.count;
  call.label = title_;
  return call;
}

void Job::AddReceive(void* recv, Elements elements, int peer, int tag) {
  received_ = std::make_shared<annulus_received_t>(annulus_received_t{sizeof(annulus_received_t), peer, tag, 0});
  annulus_call_t& call = Add(ANNULUS_CALL_RECV, nullptr, recv, elements);
  call.root = peer;
  call.tag = tag;
  call.received = received_.get();
}

annulus_call_t& Job::AddReduction(annulus_kind_t kind, const void* send, void* recv, int64_t numel,
                                  const Reduction& reduction) {
  if (reduction.is_scaled) scaled_.Ask(calls_.size(), reduction.factor);
  annulus_call_t& call = Add(kind, send, recv, {reduction.type, static_cast<size_t>(numel)});
  call.op = reduction.op;
  return call;
}

const size_t* Job::Sizes(const std::vector<int64_t>& values, size_t scale) {
  sizes_.push_back(std::make_unique<std::vector<size_t>>());
  for (const int64_t value : values) sizes_.back()->push_back(static_cast<size_t>(value) * scale);
  return sizes_.back()->data();
}

Work::About Job::AboutWork(int rank, uint64_t sequence, std::chrono::milliseconds timeout) {
  for (annulus_call_t& call : calls_) call.timeout_ms = TimeoutMs(timeout);
  return {rank, type_, title_, inputs_, result_, sequence, timeout, received_};
}

void Job::Finish() {
  // Tensors that were made in inference mode can be written in it only.
  const c10::InferenceMode as_caller(is_inference_);
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies_) {
    at::Tensor target = to;
    target.copy_(from);
  }
  if (last_ != nullptr) last_();
}

std::exception_ptr Job::Perform(const Communicator& comm) {
  if (calls_.empty()) return nullptr;
  scaled_.Make(comm, &calls_, title_);
  if (calls_.size() == 1) {
    const annulus_status_t status = annulus_run(comm.get(), calls_.data());
    return status == ANNULUS_OK ? nullptr : Failure(status, title_);
  }
  annulus_request_t* request = nullptr;
  annulus_status_t status = annulus_submit(comm.get(), calls_.data(), calls_.size(), &request);
  if (status == ANNULUS_OK) status = annulus_request_wait(request, -1);
  const std::exception_ptr failure = status == ANNULUS_OK ? nullptr : Failure(status, title_);
  annulus_request_free(request);
  return failure;
}

c10::intrusive_ptr<c10d::Work> Job::Run(const Communicator& comm, int rank, uint64_t sequence,
                                        std::chrono::milliseconds timeout) {
  const auto work = c10::make_intrusive<Work>(AboutWork(rank, sequence, timeout));
  hold_ = Registered::OfProcess().Use(used_);
  const std::exception_ptr failure = Perform(comm);
  hold_.Release();
  scaled_.Destroy();
  if (failure != nullptr) {
    work->Complete(failure);
    std::rethrow_exception(failure);
  }
  Finish();
  work->Complete(nullptr);
  return work;
}

c10::intrusive_ptr<c10d::Work> Job::Submit(const Communicator& comm, int rank, uint64_t sequence,
                                           std::chrono::milliseconds timeout) && {
  const auto work = c10::make_intrusive<Work>(AboutWork(rank, sequence, timeout));
  if (calls_.empty()) {
    Finish();
    work->Complete(nullptr);
    return work;
  }
  hold_ = Registered::OfProcess().Use(used_);
  const auto job = std::make_shared<Job>(std::move(*this));
  try {
    const auto end = [job, work](std::exception_ptr failure) {
      job->hold_.Release();
      try {
        if (failure == nullptr) job->Finish();
      } catch (...) {
        failure = std::current_exception();
      }
      work->Complete(failure);
    };
    work->DriveBy(job->Queue(comm, end, true));
  } catch (...) {
    work->Complete(std::current_exception());
    throw;
  }
  return work;
}

std::shared_ptr<Pending> Job::Queue(const Communicator& comm, Pending::End end, bool drivable) {
  scaled_.Make(comm, &calls_, title_);
  auto pending = std::make_shared<Pending>(comm, title_, std::move(end));
  const annulus_status_t status = pending->Submit(calls_, drivable);
  const std::exception_ptr failure = status == ANNULUS_OK ? nullptr : Failure(status, title_);
  scaled_.Destroy();
  if (failure != nullptr) std::rethrow_exception(failure);
  return pending;
}

}  // namespace annulus_torch
