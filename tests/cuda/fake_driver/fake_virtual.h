// FakeVirtual: the stand-in's virtual memory API: physical memory by handles, each a memory file, and reserved
// addresses where it is mapped. The CPU cannot touch it there.
//
// It is as unkind as the documentation allows: numbers of handles come again as soon as nothing has the memory, and
// what is mapped at an address may change without any other number changing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_peers.h"
#include "tests/cuda/fake_driver/fake_range.h"

namespace annulus::cuda {

class FakeVirtual {
 public:
  static constexpr size_t kGranularity = size_t{64} << 10;
  static constexpr int kElsewhere = 63;

  // What it is given outlives it.
  explicit FakeVirtual(const FakePeers* peers) : peers_(*peers) {}
  ~FakeVirtual();
  FakeVirtual(const FakeVirtual&) = delete;
  FakeVirtual& operator=(const FakeVirtual&) = delete;

  // As the driver's functions.
  Result Create(int device, size_t bytes, bool has_files, AllocationHandle* handle);
  Result Release(AllocationHandle handle);
  Result Retain(const std::byte* memory, AllocationHandle* handle);
  Result Export(AllocationHandle handle, int* file);
  Result Import(int file, AllocationHandle* handle);
  Result Reserve(size_t bytes, std::byte** begin);
  Result FreeRange(const std::byte* begin, size_t bytes);
  Result Map(const std::byte* begin, size_t bytes, AllocationHandle handle);
  Result Unmap(const std::byte* begin, size_t bytes);
  // Errors: kInvalidDevice: the device cannot reach all of it.
  Result SetAccess(const std::byte* begin, size_t bytes, int device);

  // Of what is mapped at `memory`: its device (-1: nothing is; kElsewhere: one that this
  // process does not see), the mapping, the reserved range around it, whether
  // files can be had of it, and whether that was done or it came as one.
  int DeviceOf(const std::byte* memory) const;
  MemoryRange MappingAt(const std::byte* memory) const;
  MemoryRange ReservedAt(const std::byte* memory) const;
  bool HasFiles(const std::byte* memory) const;
  bool IsExported(const std::byte* memory) const;
  // Where the device finds a range, which may lie in several mappings; null: it cannot access all of it.
  std::byte* Access(int device, const std::byte* memory, size_t bytes) const;

  size_t handles() const { return handles_.size(); }
  size_t ranges() const { return ranges_.size(); }

 private:
  struct Allocation {
    int file;
    size_t bytes;
    int device;  // Its number on the machine.
    bool has_files;
    bool is_exported;
    int references = 1;
    int mappings = 0;
  };
  struct Mapping {
    size_t bytes;
    AllocationHandle handle;
    uint64_t devices = 0;  // That may access it, one bit each.
  };
  struct Range {
    size_t bytes;
    std::byte* alias;                  // Where the device finds what is mapped.
    std::map<size_t, Mapping> mapped;  // By offset.
  };
  using Ranges = std::map<const std::byte*, Range>;

  static size_t OffsetOf(const Ranges::const_iterator& range, const std::byte* memory) {
    return static_cast<size_t>(memory - range->first);
  }
  AllocationHandle Add(const Allocation& allocation);
  void CloseUnused(AllocationHandle handle);
  Ranges::const_iterator RangeAround(const std::byte* memory, size_t bytes) const;
  // Null: nothing is mapped there.
  const Mapping* Find(const std::byte* memory, size_t* offset = nullptr) const;
  // Calls use(mapping) for each that lies in the range, which must consist of whole ones; false: it does not.
  template <class Use>
  bool ForEach(const Range& range, size_t offset, size_t bytes, Use use) const;

  const FakePeers& peers_;
  std::map<AllocationHandle, Allocation> handles_;
  Ranges ranges_;
};

}  // namespace annulus::cuda
