// VirtualRange: addresses of a GPU in which physical memory is mapped, one piece behind the other. They and the
// mappings are given back with the object.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "cuda_kernels/driver/driver_types.h"

namespace annulus {

class VirtualRange {
 public:
  // The device, whose driver has the virtual memory API, outlives it.
  explicit VirtualRange(const CudaDevice& device) : device_(device) {}
  ~VirtualRange();
  VirtualRange(const VirtualRange&) = delete;
  VirtualRange& operator=(const VirtualRange&) = delete;

  // All in the device's context. Errors: kSystem or kOutOfMemory of the driver, which checks the sizes.
  Status Reserve(size_t bytes);
  // Maps `bytes` bytes behind what is mapped. The handle may be released then.
  Status Add(cuda::AllocationHandle handle, size_t bytes);
  // Lets the device read and write all that is mapped.
  Status Open();

  std::byte* begin() const { return cuda::FromDevice(begin_); }

 private:
  Status ToStatus(cuda::Result result, const char* function) const {
    return device_.driver().ToStatus(result, function);
  }

  const CudaDevice& device_;
  cuda::DevicePointer begin_ = 0;
  size_t bytes_ = 0;
  size_t mapped_ = 0;
  std::vector<size_t> pieces_;  // Sizes.
};

}  // namespace annulus
