// CudaGraphCall: the place of a call in CUDA graphs: pinned memory for its words and for staging. What a launch does
// lies in the graph; nothing of it is a stream's or event's of our own.
//
// Threads: those of GraphCall; the rest one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/pinned/pinned_memory.h"
#include "collectives/reduce/graph_call.h"

namespace annulus {

class CudaGraphCall final : public GraphCall {
 public:
  // `device` outlives the object. Errors: kOutOfMemory of the driver, kSystem.
  static Status Open(const CudaDevice& device, size_t bytes, std::shared_ptr<GraphBell> bell,
                     std::unique_ptr<CudaGraphCall>* call);
  // No graph may have it.
  ~CudaGraphCall() = default;

  // Whether the GPU and its driver can do this. Errors: kUnsupported: why not.
  static Status Check(const CudaDevice& device);
  // Bytes that Open pins for staging memory of `bytes`.
  static size_t PinnedBytes(size_t bytes);

  const CudaDevice& device() const { return device_; }
  std::byte* staging() const;
  size_t staging_bytes() const { return bytes_; }
  size_t memory_bytes() const { return PinnedBytes(bytes_); }
  std::vector<StreamCopy>* inputs() { return &inputs_; }
  std::vector<StreamCopy>* outputs() { return &outputs_; }

  // Whether no graph has it, or will.
  bool IsFree() const { return !is_held_ || is_gone(); }
  // Has a free one begin anew.
  void BeginAnew(std::shared_ptr<GraphBell> bell);

  // Puts the copies, and the gate between them, into the graph that `user` is captured into. When it fails, what the
  // graph has of it waits for nothing.
  Status Record(cuda::Stream user, cuda::Graph graph);

  void OpenForGood() override;
  bool IsOpenForGood() const override;

 private:
  CudaGraphCall(std::unique_ptr<PinnedMemory> memory, const CudaDevice& device, size_t bytes,
                std::shared_ptr<GraphBell> bell);
  // Has the graph tell of its end.
  Status Hold(cuda::Graph graph);
  Status RecordAll(cuda::Stream user);
  // What the driver calls; `data` is the object.
  static void OnLaunch(void* data) { static_cast<CudaGraphCall*>(data)->NoteLaunch(); }
  static void OnEnd(void* data) { static_cast<CudaGraphCall*>(data)->NoteEnd(); }
  Status ToStatus(cuda::Result result, const char* function) const;
  StreamWords* words() const { return reinterpret_cast<StreamWords*>(memory_); }
  uint32_t* for_good() const;

  const CudaDevice& device_;
  const size_t bytes_;
  const std::unique_ptr<PinnedMemory> pinned_;
  std::byte* const memory_;  // Of it: the words, then staging memory.
  bool is_held_ = false;     // A graph has it, or had.
  std::vector<StreamCopy> inputs_;
  std::vector<StreamCopy> outputs_;
};

}  // namespace annulus
