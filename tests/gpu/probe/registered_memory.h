// RegisteredMemory: memory of the process's own, pinned, in which GPUs wait for words and write them: as the library's
// PinnedMemory has it where the driver can do that.
//
// Threads: one at a time, which has the context that it was pinned in.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "cuda_kernels/driver/driver.h"

namespace annulus {

class RegisteredMemory {
 public:
  // The driver outlives it.
  explicit RegisteredMemory(const cuda::Driver& driver) : driver_(driver) {}
  ~RegisteredMemory() {
    if (data_ == nullptr) return;
    driver_->MemHostUnregister(data_);
    munmap(data_, bytes_);
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  // Once. Zeroed, whole pages.
  cuda::Result Open(size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return cuda::Result::kOutOfMemory;
    const cuda::Result result =
        driver_->MemHostRegister(memory, bytes, cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
    if (result != cuda::Result::kSuccess) {
      munmap(memory, bytes);
      return result;
    }
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return result;
  }

  std::byte* data() const { return data_; }

 private:
  const cuda::Driver& driver_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace annulus
