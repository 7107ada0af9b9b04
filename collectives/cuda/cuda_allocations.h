// CudaAllocations: memory of GPUs that the library has allocated for the program, by the virtual memory API, so that
// other processes of the host can map it.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "collectives/cuda/mapped/virtual_range.h"

namespace annulus {

class CudaDomain;

class CudaAllocations {
 public:
  CudaAllocations() = default;
  CudaAllocations(const CudaAllocations&) = delete;
  CudaAllocations& operator=(const CudaAllocations&) = delete;

  // Allocates zeroed memory of GPU `device`, which that GPU may use and other processes of the host can map; the domain
  // outlives it. Errors: kInvalidArgument for 0 bytes; kUnsupported: the driver or the GPU has no virtual memory API;
  // kOutOfMemory; kSystem of the driver, as when there is no such GPU.
  Status Allocate(CudaDomain* domain, int device, size_t bytes, void** memory);

  // Returns false when `memory` is not of Allocate. No work on it may be left. Other processes that have mapped it keep
  // it until they unmap it.
  bool Free(void* memory);

  // As MemoryRegistry's.
  void HoldForFork() { mutex_.lock(); }
  void LetGoAfterFork() { mutex_.unlock(); }

 private:
  std::mutex mutex_;  // Not held while the driver is called.
  std::map<void*, std::unique_ptr<VirtualRange>> ranges_;
};

}  // namespace annulus
