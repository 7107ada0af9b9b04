// TestDevice: what tests need of a device beside its memory domain: memory on it, as a user's program allocates it, and
// a look at its content.
//
// Threads: any.
#pragma once

#include <cstddef>

#include "collectives/reduce/memory_domain.h"

namespace annulus {

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  // Outlives the memory that is allocated here.
  virtual MemoryDomain* domain() = 0;

  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* device) = 0;
  // Not while an operation on the memory is pending.
  virtual void Write(std::byte* device, const void* host, size_t bytes) = 0;
  virtual void Read(void* host, const std::byte* device, size_t bytes) const = 0;
};

}  // namespace annulus
