// CudaStreams: what one queue has on a GPU: streams, words that tell when work is done, and pinned memory for staging.
//
// Work is found done by looking at a word in pinned memory, which the GPU writes last: no call of the driver, and so no
// lock of it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/pinned/pinned_memory.h"
#include "cuda_kernels/reduce_kernel.h"

namespace annulus {

class CudaStreams {
 public:
  static constexpr int kWords = 64;
  static constexpr size_t kStagingBytes = 1024 * 1024;  // Four times the slices that are usual.

  // `device` outlives the object. Errors: kSystem or kOutOfMemory of the driver; kUnsupported when its streams write no
  // words.
  static Status Open(const CudaDevice& device, std::unique_ptr<CudaStreams>* streams);
  // No work may be under way.
  ~CudaStreams();
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  const CudaDevice& device() const { return device_; }

  // The kinds of work. Each has its own stream: work of one kind is done in order, that of different kinds in any.
  enum class Kind { kToDevice, kFromDevice, kKernels };
  // None of these needs a context. Errors: kSystem of the driver.
  // `from_host`: what is copied lies in pinned memory.
  Status Copy(Kind kind, std::byte* to, const std::byte* from, size_t bytes, bool from_host = true);
  // Word number `word` becomes `value` when all earlier work of that kind is done.
  Status Signal(Kind kind, int word, uint32_t value);
  Status Launch(cuda::Function kernel, cuda::KernelBatch* batch, unsigned slices, unsigned blocks);
  // Waits until all work is done.
  Status Synchronize();
  // Whether the device still works. It is asked rarely: a device that fails never writes its word.
  Status Check();

  // Whether word number `word` has become `value`. Then the results of that work can be seen.
  bool IsDone(int word, uint32_t value) const { return __atomic_load_n(WordAt(word), __ATOMIC_ACQUIRE) == value; }
  // Where a kernel finds the word, its counter of blocks, and lists of cuda::kMostListed sources and destinations.
  uint32_t* WordAt(int word) const;
  uint32_t* CounterAt(int word) const;
  const std::byte** ListAt(int word) const;
  std::byte** TargetsAt(int word) const;
  std::span<std::byte> staging() const;

 private:
  static constexpr int kKinds = 3;

  explicit CudaStreams(const CudaDevice& device) : device_(device), pinned_(device) {}
  Status Allocate();
  // Calls call(driver) as the driver's `function`.
  template <class Call>
  Status InContext(const char* function, Call call) const;
  Status ToStatus(cuda::Result result, const char* function) const;
  cuda::Stream StreamOf(Kind kind) const { return streams_[static_cast<int>(kind)]; }

  const CudaDevice& device_;
  cuda::Stream streams_[kKinds] = {};
  PinnedMemory pinned_;  // Words, lists, staging.
  cuda::DevicePointer counters_ = 0;
};

}  // namespace annulus
