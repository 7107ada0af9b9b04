#include "bench/perf/perf_gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace annulus::perf {
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

Status Gpu::Open(const std::string& file, int number, std::unique_ptr<Gpu>* gpu) {
  ANNULUS_RETURN_IF_ERROR(Initialise(file));
  std::unique_ptr<Gpu> opened(new Gpu);
  ANNULUS_RETURN_IF_ERROR(cuda::Driver::Find(file, &opened->driver_));
  ANNULUS_RETURN_IF_ERROR(opened->Prepare(number));
  *gpu = std::move(opened);
  return Status();
}

Status Gpu::Prepare(int number) {
  const cuda::Driver& driver = *driver_;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->DeviceGet(&device_, number),
                                          ("GPU " + std::to_string(number) + ": cuDeviceGet").c_str()));
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->DevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain"));
  const cuda::ScopedContext scope(driver, context_);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  return driver.ToStatus(driver->MemHostAlloc(&bounce_, kBounceBytes, cuda::kHostAllocPortable), "cuMemHostAlloc");
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const cuda::ScopedContext scope(*driver_, context_);
    if (stream_ != nullptr) (*driver_)->StreamDestroy(stream_);
    if (bounce_ != nullptr) (*driver_)->MemFreeHost(bounce_);
  }
  (*driver_)->DevicePrimaryCtxRelease(device_);
}

Status Gpu::Allocate(size_t bytes, void** memory) {
  const cuda::ScopedContext scope(*driver_, context_);
  cuda::DevicePointer allocated = 0;
  const cuda::Result result = (*driver_)->MemAlloc(&allocated, bytes);
  *memory = cuda::FromDevice(allocated);
  return driver_->ToStatus(result, "cuMemAlloc");
}

void Gpu::Free(void* memory) {
  const cuda::ScopedContext scope(*driver_, context_);
  (*driver_)->MemFree(cuda::ToDevice(memory));
}

Status Gpu::Copy(void* to, const void* from, size_t bytes) {
  const cuda::ScopedContext scope(*driver_, context_);
  ANNULUS_RETURN_IF_ERROR(driver_->ToStatus(
      (*driver_)->MemcpyAsync(cuda::ToDevice(to), cuda::ToDevice(from), bytes, stream_), "cuMemcpyAsync"));
  return driver_->ToStatus((*driver_)->StreamSynchronize(stream_), "cuStreamSynchronize");
}

Status Gpu::Write(void* device, const void* host, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBounceBytes) {
    const size_t piece = std::min(kBounceBytes, bytes - at);
    std::memcpy(bounce_, static_cast<const std::byte*>(host) + at, piece);
    ANNULUS_RETURN_IF_ERROR(Copy(static_cast<std::byte*>(device) + at, bounce_, piece));
  }
  return Status();
}

Status Gpu::Read(void* host, const void* device, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kBounceBytes) {
    const size_t piece = std::min(kBounceBytes, bytes - at);
    ANNULUS_RETURN_IF_ERROR(Copy(bounce_, static_cast<const std::byte*>(device) + at, piece));
    std::memcpy(static_cast<std::byte*>(host) + at, bounce_, piece);
  }
  return Status();
}

}  // namespace annulus::perf
