#include "collectives/cuda/pinned/pinned_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace annulus {
namespace {

constexpr unsigned kRegister = cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap;
constexpr unsigned kAllocate = cuda::kHostAllocPortable | cuda::kHostAllocDeviceMap;

}  // namespace

Status PinnedMemory::Open(size_t bytes) {
  Close();
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {
    // A child would take its pages with it (copy on write), and the GPU would write where this process does not read.
    madvise(memory, bytes, MADV_DONTFORK);
    is_own_ = driver->MemHostRegister(memory, bytes, kRegister) == cuda::Result::kSuccess;
    if (!is_own_) munmap(memory, bytes);
  }
  if (!is_own_) {
    ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->MemHostAlloc(&memory, bytes, kAllocate), "cuMemHostAlloc"));
    std::memset(memory, 0, bytes);
  }
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return Status();
}

void PinnedMemory::Close() {
  if (data_ == nullptr) return;
  const cuda::Driver& driver = device_.driver();
  void* const memory = std::exchange(data_, nullptr);
  {
    // The context is gone, and with it all that was in it.
    const DeviceScope scope(device_);
    if (scope.status().ok() && is_own_) driver->MemHostUnregister(memory);
    if (scope.status().ok() && !is_own_) driver->MemFreeHost(memory);
  }
  if (std::exchange(is_own_, false)) munmap(memory, bytes_);
  bytes_ = 0;
}

}  // namespace annulus
