// PinnedMemory: memory that the CPU and all GPUs access: words by which they tell each other how far they are, and
// staging memory.
//
// It is the process's own, pinned, where the driver can do that: then it stays when the program resets the GPU, and
// whoever looks at its words goes on. Where the driver cannot, as where slots are not pinned, it is the driver's, and
// goes with the GPU's context.
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"

namespace annulus {

class PinnedMemory {
 public:
  // Pinned in that GPU's context; it outlives the memory.
  explicit PinnedMemory(const CudaDevice& device) : device_(device) {}
  ~PinnedMemory() { Close(); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Replaces what it had. Zeroed; a forked child does not have it. Errors: kOutOfMemory or kSystem of the driver.
  Status Open(size_t bytes);
  // Gives it back. The GPU must not use it any more.
  void Close();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const CudaDevice& device_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool is_own_ = false;  // Else the driver's.
};

}  // namespace annulus
