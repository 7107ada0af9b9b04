// FoldMemory: the memory of a GPU in which the ranks of a host work together on stream-ordered calls: this rank's part,
// and where its GPU finds those of the others.
//
// One call at a time works in it: each waits for the event `turn`, which the one before it records when it has done.
//
// Threads: one at a time; the destructor's is any.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/cuda_sharing.h"
#include "collectives/cuda/cuda_stream_call.h"

namespace annulus {

class FoldMemory final : public FoldTurn {
 public:
  // Allocates `bytes` bytes on `device`; both outlive the object. Errors: kUnsupported: other processes cannot reach
  // such memory, or the device has no kernels; kSystem or kOutOfMemory of the driver.
  static Status Open(CudaDomain* domain, const CudaDevice& device, size_t bytes, std::shared_ptr<FoldMemory>* memory);
  // No work on the memory may be left. Other processes that have mapped it keep it until they unmap it.
  ~FoldMemory();
  FoldMemory(const FoldMemory&) = delete;
  FoldMemory& operator=(const FoldMemory&) = delete;

  const CudaDevice& device() const { return device_; }
  const SharedPlace& place() const { return place_; }
  // As StreamCalls::Reach.
  Status Reach(std::span<const SharedPlace> places, std::vector<std::byte*>* memory);

 private:
  FoldMemory(CudaDomain* domain, const CudaDevice& device, size_t bytes)
      : device_(device), bytes_(bytes), sharing_(domain, ReduceOn::kAuto) {}
  Status Create();
  Status ToStatus(cuda::Result result, const char* function) const {
    return device_.driver().ToStatus(result, function);
  }

  const CudaDevice& device_;
  const size_t bytes_;
  CudaSharing sharing_;
  cuda::DevicePointer memory_ = 0;
  cuda::DevicePointer counter_memory_ = 0;
  SharedPlace place_;
};

}  // namespace annulus
