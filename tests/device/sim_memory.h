// SimMemory: memory with two addresses, one for its users that nobody can touch and one for the device that owns it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace annulus {

class SimMemory {
 public:
  SimMemory() = default;
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;
  ~SimMemory();

  // Returns the untouchable address.
  std::byte* Allocate(size_t bytes);
  // Memory that the process with that file has: its other end of Allocate. Null: there is no such file any more.
  std::byte* Adopt(const std::string& file, size_t bytes);
  // The path by which any process of the user finds the memory that begins at `shown`, as long as it is allocated.
  std::string FileOf(const std::byte* shown) const;
  // `shown` was returned by Allocate or Adopt. `keeps_address`: nothing ever comes to that address again.
  void Free(std::byte* shown, bool keeps_address = false);

  // Where the device finds [address, address + bytes): in the alias, or as it is when it is not device memory.
  // A range that only partly lies in an allocation is a bug of the caller.
  std::byte* Translate(const std::byte* address, size_t bytes) const;
  bool Owns(const std::byte* address) const { return Find(address) != regions_.end(); }

 private:
  struct Region {
    std::byte* alias;
    size_t bytes;
    int file;
  };
  using Regions = std::map<const std::byte*, Region>;  // By the address that users see.
  std::byte* Map(int file, size_t bytes);
  Regions::const_iterator Find(const std::byte* address) const;

  Regions regions_;
};

}  // namespace annulus
