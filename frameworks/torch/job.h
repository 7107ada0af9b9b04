// Job: what one call of PyTorch does: calls of Annulus, the tensors that they use, and copies at the end. On CPU
// tensors it is run or submitted, on those of a GPU enqueued in a stream.
//
// Threads: made by one, finished by another.
#pragma once

#include <ATen/ATen.h>
#include <annulus.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "frameworks/torch/communicator.h"
#include "frameworks/torch/elements.h"
#include "frameworks/torch/pending.h"
#include "frameworks/torch/registered.h"
#include "frameworks/torch/streams.h"
#include "frameworks/torch/work.h"

namespace annulus_torch {

class Job {
 public:
  Job(c10d::OpType type, const char* title) : type_(type), title_(title) {}

  // Says that the call uses the tensor. Errors: throws unless it is dense, and in the memory of the CPU or of a CUDA
  // device, the same as that of the tensors before it.
  void Use(const at::Tensor& tensor);
  void Use(const std::vector<at::Tensor>& tensors);
  // The same for a call without tensors.
  void UseDevice(at::Device device);
  // That of the tensors; the CPU if there are none.
  at::Device device() const { return device_.value_or(at::kCPU); }

  // A contiguous tensor with the values of `tensor`, which the calls may read; the tensor itself if it is contiguous.
  at::Tensor Read(const at::Tensor& tensor);
  // One that the calls may write, and whose values `tensor` has in the end. `keeps`: it has the tensor's values first.
  at::Tensor Write(const at::Tensor& tensor, bool keeps = false);
  // Memory of the job's own, for elements of the type of `like`. While a CUDA graph is captured PyTorch takes it from
  // the graph's private pool, which is kept as long as the graph; so it does for what Read and Write make.
  at::Tensor Scratch(int64_t numel, const at::Tensor& like);
  // Copies `from` to `to` when the calls are done.
  void CopyAtEnd(const at::Tensor& to, const at::Tensor& from) { copies_.emplace_back(to, from); }
  // Runs `last` when the calls are done, after the copies; it keeps the memory that it captures.
  void RunAtEnd(std::function<void()> last) { last_ = std::move(last); }

  // A new call; valid until the next one is added. `elements` counts for both buffers.
  annulus_call_t& Add(annulus_kind_t kind, const void* send, void* recv, Elements elements);
  // A reduction of `tensor`'s elements; `numel` of them count.
  annulus_call_t& AddReduction(annulus_kind_t kind, const void* send, void* recv, int64_t numel,
                               const Reduction& reduction);
  // An array for a call, valid as long as the job: values[i] * scale.
  const size_t* Sizes(const std::vector<int64_t>& values, size_t scale);

  // The inputs as profiles show them.
  void set_inputs(std::vector<at::Tensor> inputs) { inputs_ = std::move(inputs); }
  void set_result(std::vector<at::Tensor> result) { result_ = std::move(result); }
  // A receive of a message from `peer` with that tag.
  void AddReceive(void* recv, Elements elements, int peer, int tag);

  // Does it on the calling thread; throws what failed.
  c10::intrusive_ptr<c10d::Work> Run(const Communicator& comm, int rank, uint64_t sequence,
                                     std::chrono::milliseconds timeout);
  // Queues it. Throws when it is refused.
  c10::intrusive_ptr<c10d::Work> Submit(const Communicator& comm, int rank, uint64_t sequence,
                                        std::chrono::milliseconds timeout) &&;
  // Enqueues it behind what the current stream of its device holds: in that stream, or else, so that the stream may go
  // on meanwhile, in one of `own`. Throws when it is refused.
  // `blocks`: the work's `wait` blocks the caller too. A stream that is captured makes the calls part of the graph.
  c10::intrusive_ptr<c10d::Work> Enqueue(const Communicator& comm, int rank, uint64_t sequence,
                                         std::chrono::milliseconds timeout, Streams* own, bool blocks) &&;

 private:
  Work::About AboutWork(int rank, uint64_t sequence, std::chrono::milliseconds timeout);
  // Queues the calls. When all are done, `end` gets what failed or null, on the communicator's thread, or on one that
  // drives them, which it may if `drivable`. Errors: throws when they are refused; `end` is not called then.
  std::shared_ptr<Pending> Queue(const Communicator& comm, Pending::End end, bool drivable);
  // Makes the calls part of the graph that their stream is captured into: each launch makes them, and nobody is told
  // how they end. Errors: throws when they are refused.
  void Capture(const Communicator& comm);
  // Tells the allocator that the tensors' memory is used in the stream.
  void KeepMemoryFor(const c10::Stream& stream) const;
  // Makes the calls and waits. Returns null or what failed.
  std::exception_ptr Perform(const Communicator& comm);
  void Finish();

  const c10d::OpType type_;
  const char* const title_;
  const bool is_inference_ = c10::InferenceMode::is_enabled();  // In the thread that made the job.
  std::optional<at::Device> device_;
  std::vector<annulus_call_t> calls_;
  std::vector<at::Tensor> used_;  // Keeps their memory.
  Registered::Hold hold_;         // Holds that memory while the calls are under way on the CPU.
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> result_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // To, from.
  std::function<void()> last_;                             // Null: there is nothing more to do.
  std::vector<std::unique_ptr<std::vector<size_t>>> sizes_;
  ScaledSums scaled_;
  std::shared_ptr<annulus_received_t> received_;  // What a receive got; null for others.
};

}  // namespace annulus_torch
