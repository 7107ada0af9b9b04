// MappedMemory: memory of a GPU as programs make it with the virtual memory API: pieces of cuMemCreate, mapped side by
// side in one reserved range, as PyTorch's expandable segments are.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cuda_kernels/driver/driver.h"

namespace annulus {

struct MappedShape {
  size_t bytes = 0;
  size_t piece_bytes = 0;    // Rounded up to the granularity; 0: one piece.
  bool is_shareable = true;  // Descriptors can be had of it.
  int gpu = 0;
};

class MappedMemory {
 public:
  // On a GPU whose primary context is `context`; both outlive it. Errors: kSystem or kOutOfMemory of the driver;
  // kUnsupported: it has no such API.
  static Status Make(const cuda::Driver& driver, cuda::Context context, const MappedShape& shape,
                     std::unique_ptr<MappedMemory>* memory);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const { return cuda::FromDevice(begin_); }
  size_t bytes() const { return piece_bytes_ * mapped_.size(); }
  size_t piece_bytes() const { return piece_bytes_; }
  // Puts other memory in the place of a piece.
  Status Replace(size_t piece, bool is_shareable = true);

 private:
  MappedMemory(const cuda::Driver& driver, cuda::Context context, const MappedShape& shape)
      : driver_(driver), context_(context) {
    properties_.handles = shape.is_shareable ? cuda::ShareableHandle::kFile : cuda::ShareableHandle::kNone;
    properties_.location.number = shape.gpu;
  }
  Status Reserve(const MappedShape& shape);
  Status Map(size_t piece);
  void Unmap(size_t piece);
  Status ToStatus(cuda::Result result, const char* function) const { return driver_.ToStatus(result, function); }

  const cuda::Driver& driver_;
  const cuda::Context context_;
  cuda::AllocationProperties properties_;
  cuda::DevicePointer begin_ = 0;
  size_t piece_bytes_ = 0;
  std::vector<bool> mapped_;  // By piece.
};

}  // namespace annulus
