// CudaExports: memory of GPUs as descriptors of dma-bufs, by which network cards read it.
//
// Threads: any.
#pragma once

#include "collectives/cuda/device_ranges.h"
#include "transport/memory/device_exports.h"

namespace annulus {

class CudaDevice;
class CudaDomain;

class CudaExports final : public DeviceExports {
 public:
  // `ranges`: where buffers of calls have been. Both outlive it.
  CudaExports(CudaDomain* domain, const DeviceRanges* ranges) : domain_(domain), ranges_(ranges) {}

  bool RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const override;
  Status Export(const DeviceRange& range, int* fd, uint64_t* offset) const override;
  Status ShowWrites(const std::byte* data) const override;
  Status CopyOut(const std::byte* data, size_t bytes, std::byte* slots) const override;

 private:
  // Sets *device to the GPU whose memory it is.
  Status Find(const std::byte* data, const CudaDevice** device) const;

  CudaDomain* const domain_;
  const DeviceRanges* const ranges_;
};

}  // namespace annulus
