#include "tests/gpu/real_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cuda_kernels/kernel_image.h"

namespace annulus {
namespace {

// What every program that uses CUDA calls first; the library itself never does.
Status Initialise(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW);
  if (handle == nullptr) return {Code::kUnsupported, dlerror()};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(handle, "cuInit"));
  if (init == nullptr) return {Code::kUnsupported, file + " has no cuInit"};
  const int result = init(0);
  return result == 0 ? Status() : Status(Code::kUnsupported, "cuInit: error " + std::to_string(result));
}

}  // namespace

Status RealDevice::Open(const std::string& file, std::unique_ptr<RealDevice>* device) {
  ANNULUS_RETURN_IF_ERROR(Initialise(file));
  std::unique_ptr<RealDevice> opened(new RealDevice);
  ANNULUS_RETURN_IF_ERROR(cuda::Driver::Find(file, &opened->driver_));
  const cuda::Driver& driver = *opened->driver_;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->DeviceGet(&opened->device_, 0), "cuDeviceGet"));
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->DevicePrimaryCtxRetain(&opened->context_, opened->device_), "cuDevicePrimaryCtxRetain"));
  const cuda::ScopedContext scope(driver, opened->context_);
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(
      driver->StreamCreateWithPriority(&opened->stream_, cuda::kStreamNonBlocking, 0), "cuStreamCreateWithPriority"));
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(
      driver->MemHostAlloc(&opened->bounce_, kBounceBytes, cuda::kHostAllocPortable), "cuMemHostAlloc"));
  std::unique_ptr<cuda::Driver> of_library;
  ANNULUS_RETURN_IF_ERROR(cuda::Driver::Find(file, &of_library));
  opened->domain_ = std::make_unique<CudaDomain>(std::move(of_library), cuda::KernelImage());
  *device = std::move(opened);
  return Status();
}

RealDevice::~RealDevice() {
  domain_.reset();
  if (context_ == nullptr) return;
  {
    const cuda::ScopedContext scope(*driver_, context_);
    if (stream_ != nullptr) (*driver_)->StreamDestroy(stream_);
    if (bounce_ != nullptr) (*driver_)->MemFreeHost(bounce_);
  }
  (*driver_)->DevicePrimaryCtxRelease(device_);
}

std::byte* RealDevice::Allocate(size_t bytes) {
  const cuda::ScopedContext scope(*driver_, context_);
  cuda::DevicePointer memory = 0;
  ANNULUS_CHECK((*driver_)->MemAlloc(&memory, bytes) == cuda::Result::kSuccess);
  return cuda::FromDevice(memory);
}

void RealDevice::Free(std::byte* device) {
  const cuda::ScopedContext scope(*driver_, context_);
  (*driver_)->MemFree(cuda::ToDevice(device));
}

void RealDevice::Copy(void* to, const void* from, size_t bytes) const {
  const cuda::ScopedContext scope(*driver_, context_);
  ANNULUS_CHECK((*driver_)->MemcpyAsync(cuda::ToDevice(to), cuda::ToDevice(from), bytes, stream_) ==
                cuda::Result::kSuccess);
  ANNULUS_CHECK((*driver_)->StreamSynchronize(stream_) == cuda::Result::kSuccess);
}

void RealDevice::Write(std::byte* device, const void* host, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBounceBytes) {
    const size_t piece = std::min(kBounceBytes, bytes - at);
    std::memcpy(bounce_, static_cast<const std::byte*>(host) + at, piece);
    Copy(device + at, bounce_, piece);
  }
}

void RealDevice::Read(void* host, const std::byte* device, size_t bytes) const {
  for (size_t at = 0; at < bytes; at += kBounceBytes) {
    const size_t piece = std::min(kBounceBytes, bytes - at);
    Copy(bounce_, device + at, piece);
    std::memcpy(static_cast<std::byte*>(host) + at, bounce_, piece);
  }
}

}  // namespace annulus
