// MemoryRange: addresses of the stand-in's devices.
//
// Threads: a value.
#pragma once

#include <cstddef>

namespace annulus::cuda {

struct MemoryRange {
  const std::byte* begin = nullptr;
  size_t bytes = 0;

  bool Overlaps(const MemoryRange& other) const {
    return bytes > 0 && other.bytes > 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

}  // namespace annulus::cuda
