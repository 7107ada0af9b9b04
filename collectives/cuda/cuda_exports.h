// CudaExports: memory of GPUs as descriptors of dma-bufs, by which network cards read it.
//
// Copies for links that go on elsewhere are begun and not waited for: whoever drives a link may be the thread that has
// to open the gate of a stream, behind which the driver would wait. So all that they need is made when memory is first
// exported, and found without a lock.
//
// Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_windows.h"
#include "collectives/cuda/places/device_ranges.h"
#include "cuda_kernels/driver/driver_types.h"
#include "transport/memory/device_exports.h"

namespace annulus {

class CudaDevice;
class CudaDomain;

class CudaExports final : public DeviceExports {
 public:
  // `ranges`: where buffers of calls have been. Both outlive it.
  CudaExports(CudaDomain* domain, const DeviceRanges* ranges)
      : domain_(domain), ranges_(ranges), windows_(domain, this) {}

  std::string missing() const override;
  bool RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const override;
  Status Export(const DeviceRange& range, int* fd, uint64_t* offset) const override;
  std::string PciAddress(int device) const override;
  int CurrentDevice() const override;
  std::string Name(int device) const override;
  DeviceReach ReachOf(int device, const std::string& pci_address) const override;
  DeviceWrites WritesTo(int device) const override;
  Status FlushWrites(int device) const override;
  Status CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) const override;
  Status CheckCopies(int device) const override;
  void AwaitCopies(int device) const override { AwaitStream(*At(device).device, At(device).copies); }
  void TellWay(const void* links, const std::string& way) const override;
  DeviceSharing* sharing() const override { return &windows_; }

  CudaWindows& windows() const { return windows_; }
  // CopyOut, CheckCopies and AwaitCopies in a stream of that GPU.
  Status CopyOutIn(const CudaDevice& device, cuda::Stream stream, const std::byte* data, size_t bytes, std::byte* slots,
                   uint32_t* done) const;
  Status CheckStream(const CudaDevice& device, cuda::Stream stream) const;
  void AwaitStream(const CudaDevice& device, cuda::Stream stream) const;
  // Whether GPUs can copy to all of that memory: one registration with the driver has it. Errors: kUnsupported; kSystem
  // of the driver.
  Status CheckPinned(const std::byte* memory, size_t bytes) const;

  // What was told last of those links; "" when nothing was.
  std::string WayOf(const void* links) const;

  // Gives back what copies needed; before the domain's devices end.
  void End();

 private:
  // More than any machine has.
  static constexpr int kMostGpus = 64;

  // A GPU whose memory was exported.
  struct Gpu {
    const CudaDevice* device = nullptr;
    cuda::Stream copies = nullptr;  // The stream of copies out.
  };

  // One of which something was exported.
  const Gpu& At(int device) const { return *gpus_[static_cast<size_t>(device)].load(std::memory_order_acquire); }
  // Sets *number to the number of the first device for which `is_it`. Returns false when there is none.
  template <class Condition>
  bool FindNumber(int* number, Condition is_it) const;
  // Makes what copies from that GPU need.
  Status Prepare(const CudaDevice& device) const;

  CudaDomain* const domain_;
  const DeviceRanges* const ranges_;
  mutable std::array<std::atomic<const Gpu*>, kMostGpus> gpus_{};  // By number; another one after a reset.
  mutable std::mutex made_mutex_;                                  // Not held while the driver is called.
  mutable std::vector<std::unique_ptr<const Gpu>> made_;           // All that were in gpus_.
  mutable CudaWindows windows_;
  mutable std::mutex ways_mutex_;  // Guards ways_. Not held while the driver is called.
  mutable std::map<const void*, std::string> ways_;
};

}  // namespace annulus
