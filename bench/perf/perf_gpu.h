// Gpu: a GPU and its memory as a program that uses CUDA has them: through the driver alone, which is opened at run
// time.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "cuda_kernels/driver/driver.h"

namespace annulus::perf {

class Gpu {
 public:
  // Loads the driver from `file`, such as libcuda.so.1, and takes GPU `number`. Before the first communicator, which
  // looks for the driver. Errors: kUnsupported without a driver or a GPU; kSystem or kOutOfMemory of the driver.
  static Status Open(const std::string& file, int number, std::unique_ptr<Gpu>* gpu);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const cuda::Driver& driver() const { return *driver_; }
  cuda::Context context() const { return context_; }

  // Errors of all: kSystem or kOutOfMemory of the driver.
  Status Allocate(size_t bytes, void** memory);
  void Free(void* memory);
  // Copies within the GPU, and returns when that is done.
  Status Copy(void* to, const void* from, size_t bytes);
  // Copies from and to any host memory.
  Status Write(void* device, const void* host, size_t bytes);
  Status Read(void* host, const void* device, size_t bytes);

 private:
  static constexpr size_t kBounceBytes = 4 << 20;

  Gpu() = default;
  Status Prepare(int number);

  std::unique_ptr<cuda::Driver> driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  void* bounce_ = nullptr;  // Pinned, kBounceBytes.
};

}  // namespace annulus::perf
