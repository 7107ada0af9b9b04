// CopyLoop: work that keeps a GPU busy, and how fast it goes: copies within its memory.
//
// Threads: one.
#pragma once

#include <cstddef>

#include "cuda_kernels/driver/driver.h"
#include "tests/gpu/real_device.h"

namespace annulus {

class CopyLoop {
 public:
  // Copies `bytes` bytes at a time. `device` outlives it.
  CopyLoop(RealDevice* device, size_t bytes);
  ~CopyLoop();
  CopyLoop(const CopyLoop&) = delete;
  CopyLoop& operator=(const CopyLoop&) = delete;

  // Copies for `milliseconds`, and returns how many bytes a second were copied.
  double Run(int milliseconds);

 private:
  RealDevice* const device_;
  const size_t bytes_;
  std::byte* from_;
  std::byte* to_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace annulus
