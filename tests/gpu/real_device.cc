#include "tests/gpu/real_device.h"

#include <utility>

#include "base/check.h"
#include "cuda_kernels/kernel_image.h"

namespace annulus {

Status RealDevice::Open(const std::string& file, std::unique_ptr<RealDevice>* device) {
  std::unique_ptr<RealDevice> opened(new RealDevice);
  ANNULUS_RETURN_IF_ERROR(perf::Gpu::Open(file, 0, &opened->gpu_));
  std::unique_ptr<cuda::Driver> of_library;
  ANNULUS_RETURN_IF_ERROR(cuda::Driver::Find(file, &of_library));
  opened->domain_ = std::make_unique<CudaDomain>(std::move(of_library), cuda::KernelImage());
  *device = std::move(opened);
  return Status();
}

RealDevice::~RealDevice() = default;

std::byte* RealDevice::Allocate(size_t bytes) {
  if (is_mapped_) {
    std::unique_ptr<MappedMemory> made;
    ANNULUS_CHECK(MappedMemory::Make(driver(), context(), {bytes, bytes / 8 + 1, true}, &made).ok());
    std::byte* const begin = made->data();
    mapped_[begin] = std::move(made);
    return begin;
  }
  void* memory = nullptr;
  ANNULUS_CHECK(gpu_->Allocate(bytes, &memory).ok());
  return static_cast<std::byte*>(memory);
}

void RealDevice::Free(std::byte* device) {
  if (mapped_.erase(device) == 0) gpu_->Free(device);
}

void RealDevice::Write(std::byte* device, const void* host, size_t bytes) {
  ANNULUS_CHECK(gpu_->Write(device, host, bytes).ok());
}

void RealDevice::Read(void* host, const std::byte* device, size_t bytes) const {
  ANNULUS_CHECK(gpu_->Read(host, device, bytes).ok());
}

}  // namespace annulus
