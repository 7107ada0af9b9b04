// FakeMemory: which memory the stand-in's devices can access: their own, which the CPU cannot touch, pinned memory, and
// that of devices into which they were let.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_peers.h"
#include "tests/cuda/fake_driver/fake_range.h"
#include "tests/cuda/fake_driver/fake_virtual.h"
#include "tests/device/sim_memory.h"

namespace annulus::cuda {

class FakeMemory {
 public:
  explicit FakeMemory(const FakeOptions& options)
      : keeps_addresses_(options.keeps_addresses), peers_(options), virtual_(&peers_) {}

  FakePeers& peers() { return peers_; }

  FakeVirtual& virtual_memory() { return virtual_; }
  const FakeVirtual& virtual_memory() const { return virtual_; }

  std::byte* Allocate(int device, size_t bytes);
  // A name of the allocation that begins at `memory`, for other processes; false: none does.
  bool Export(const std::byte* memory, IpcMemHandle* handle);
  // Whether the allocation around `memory` has been, or is another process's.
  bool IsExported(const std::byte* memory) const;
  // Sets *memory to what another process has under that name, as `device` sees it here, which is let into the device
  // whose memory it is. Errors: kInvalidContext: it has none; kPeerAccessUnsupported; kAlreadyMapped: something else
  // that the other process has, or had, at these addresses is still mapped.
  Result Import(int device, const IpcMemHandle& handle, std::byte** memory);
  // The path of the file of an allocation, all pages of which these are; "": there is none.
  std::string FileOf(const std::byte* memory, size_t bytes) const;
  // Different for each allocation, 0 where there is none. Of mapped memory it is that of the reserved range.
  uint64_t IdOf(const std::byte* memory) const;
  // False: nothing was allocated there.
  bool Free(const std::byte* memory);
  // The device whose memory it is, -1 when it is no device's.
  int DeviceOf(const std::byte* memory) const;
  // The range of the allocation that begins at `memory`.
  MemoryRange AllocationAt(const std::byte* memory) const;

  // As the driver: whole pages. kHostMemoryAlreadyRegistered when some of them are pinned already.
  Result Pin(int device, const std::byte* memory, size_t bytes);
  // The range that was pinned at `memory`; of no bytes when none was.
  MemoryRange PinnedAt(const std::byte* memory) const;
  void Unpin(const std::byte* memory) { pinned_.erase(memory); }
  // What the context of a device had goes with it: its memory, what it has mapped, what was pinned in it, and who was
  // let in.
  // Returns how many it had mapped of other processes.
  int64_t Lose(int device);
  // Whether the last that was there, memory of a device or pinned memory, went so.
  bool IsLost(const std::byte* memory) const { return lost_.contains(memory); }
  // The allocation or pinned range in which `memory` lies; of no bytes when there is none.
  MemoryRange RangeAround(const std::byte* memory) const;
  bool IsPinned(const std::byte* memory, size_t bytes) const;
  size_t pinned_ranges() const { return pinned_.size(); }
  size_t pinned_bytes() const;

  // Where device `device` finds a range; null when it cannot access all of it.
  std::byte* Access(int device, const std::byte* memory, size_t bytes) const;
  // The same for memory that it changes by atomic operations.
  std::byte* AccessAtomically(int device, const std::byte* memory, size_t bytes) const;

 private:
  struct Allocation {
    int device;
    size_t bytes;
    uint64_t id;
    bool is_exported = false;
    bool is_import = false;  // Another process's: only the device that has mapped it finds it here.
    std::string owner = {};  // The process of an import,
    uint64_t owned = 0;      // and where that has, or had, it.
  };
  std::map<const std::byte*, Allocation>::const_iterator Find(const std::byte* memory) const;

  const bool keeps_addresses_;
  SimMemory memory_;
  FakePeers peers_;
  FakeVirtual virtual_;
  std::map<const std::byte*, Allocation> allocations_;
  uint64_t last_id_ = 0;
  struct Pinned {
    size_t bytes;
    int device;  // In whose context.
  };
  std::map<const std::byte*, Pinned> pinned_;  // By begin, as they were given.
  std::set<const std::byte*> lost_;
};

}  // namespace annulus::cuda
