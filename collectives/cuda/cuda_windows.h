// CudaWindows: allocations of GPUs, of this process and of others, that links over shared memory have opened for GPUs
// of this process to read slices there. Only memory of cudaMalloc is shared so, by CUDA IPC.
//
// Mappings are those that folds have too (CudaMappings). A window counts as a queue there, so that it stays until it is
// closed.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/reduce/shared_memory.h"
#include "cuda_kernels/driver/driver_types.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/device_sharing.h"

namespace annulus {

class CudaDevice;
class CudaDomain;
class CudaExports;

class CudaWindows final : public DeviceSharing {
 public:
  // The domain and its exports outlive it.
  CudaWindows(CudaDomain* domain, const CudaExports* exports) : domain_(domain), exports_(exports) {}

  Status Describe(const DeviceRange& range, SharedDeviceMemory* shared) override;
  uint64_t described() const override { return described_.load(std::memory_order_relaxed); }
  void CountDescribed() { described_.fetch_add(1, std::memory_order_relaxed); }
  Status Open(int device, const SharedDeviceMemory& shared, size_t bytes, const std::byte** begin) override;
  void Close(int device, const std::byte* begin) override;
  Status CheckSlots(int device, const std::byte* slots, size_t bytes) override;
  Status CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) override;
  Status CheckCopies(int device) override;
  void AwaitCopies(int device) override;

  // Whether a window of that GPU has all of [memory, memory + bytes), whosever the driver says it is.
  bool Has(int device, const std::byte* memory, size_t bytes) const;

 private:
  struct Window {
    const CudaDevice* device = nullptr;
    const std::byte* begin = nullptr;
    size_t bytes = 0;
    bool is_own = false;  // Of this process.
  };

  // A GPU that has windows, and the stream of its copies out of them.
  struct Reader {
    const CudaDevice* device = nullptr;
    cuda::Stream stream = nullptr;
    int windows = 0;
  };

  // Sets *memory to where the GPU finds the allocation, which counts as used until Leave. Errors: as Open.
  Status Reach(const CudaDevice& device, const SharedPlace& place, std::byte** memory);
  void Leave(const CudaDevice& device, const Window& window);
  // Adds a window of that GPU. Errors: kSystem or kOutOfMemory of the driver.
  Status Add(const CudaDevice& device, const Window& window);
  // That GPU, which has windows; after a reset the new one.
  Reader ReaderOf(int device) const;

  CudaDomain* const domain_;
  const CudaExports* const exports_;
  std::atomic<uint64_t> described_{0};
  mutable std::mutex mutex_;  // Not held while the driver is called.
  std::vector<Window> windows_;
  std::vector<Reader> readers_;
};

}  // namespace annulus
