// SimMemory: memory with two addresses, one for its users that nobody can touch and one for the device that owns it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace annulus {

class SimMemory {
 public:
  SimMemory() = default;
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;
  ~SimMemory();

  // Returns the untouchable address.
  std::byte* Allocate(size_t bytes);

  // Where the device finds [address, address + bytes): in the alias, or as it is when it is not device memory.
  // A range that only partly lies in an allocation is a bug of the caller.
  std::byte* Translate(const std::byte* address, size_t bytes) const;
  bool Owns(const std::byte* address) const { return Find(address) != nullptr; }

 private:
  struct Region {
    std::byte* shown;
    std::byte* alias;
    size_t bytes;
  };
  const Region* Find(const std::byte* address) const;

  std::vector<Region> regions_;
};

}  // namespace annulus
