// Registered memory on a link: which regions of this process have been offered to the peer, and which regions of the
// peer are mapped here. transport/memory/memory.h creates regions; ShmBell carries the notices.
//
// Threads: as the endpoint, except ShmPeerRegions::mapped_bytes().
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/memory/device_sharing.h"
#include "transport/memory/memory.h"
#include "transport/shm/shm_format.h"

namespace annulus {

// Bounds on what one end of a link makes the other map. Regions beyond them are staged.
constexpr size_t kShmMostRegions = 4096;
constexpr uint64_t kShmMostRegionBytes = uint64_t{1} << 46;

// The registered memory that this end lets the peer read in place.
class ShmOwnRegions {
 public:
  // Sends a notice, with a file or -1. Returns false when there is no room now.
  using SendNotice = std::function<bool(const ShmNotice& notice, int fd)>;

  // `registry` outlives the object; null: the peer can read nothing in place.
  ShmOwnRegions(const MemoryRegistry* registry, SendNotice send) : registry_(registry), send_(std::move(send)) {}

  // Whether the peer can read [data, data + bytes) in place. Sends the peer a notice of the region if it does not know
  // it yet. Makes system calls only when regions have been added or removed.
  bool Find(const std::byte* data, size_t bytes, ShmPlace* place);

 private:
  // A region as this link knows it. Does not keep the region and its descriptor alive.
  struct Known {
    std::weak_ptr<const MemoryRegion> region;
    uint64_t id = 0;
    const std::byte* begin = nullptr;
    size_t bytes = 0;
    bool told = false;
  };

  void Refresh();
  bool Tell(const Known& known);

  const MemoryRegistry* const registry_;
  const SendNotice send_;
  uint64_t version_ = 0;  // Version of the registry when it was last read.
  std::vector<Known> known_;
  std::vector<uint64_t> to_forget_;  // Ids of the removed regions that are still to be withdrawn at the peer.
  size_t at_peer_ = 0;               // Number of regions that were reported to the peer and not withdrawn.
};

// The registered memory of the peer that is mapped here, for reading only.
class ShmPeerRegions {
 public:
  // Takes notices of devices, with an allocation's description or null. Returns false when what they say cannot be.
  using OnDevice = std::function<bool(const ShmNotice& notice, const SharedDeviceMemory* shared)>;

  // Without `on_device` such notices are faults.
  explicit ShmPeerRegions(OnDevice on_device = nullptr) : on_device_(std::move(on_device)) {}
  ~ShmPeerRegions();
  ShmPeerRegions(const ShmPeerRegions&) = delete;
  ShmPeerRegions& operator=(const ShmPeerRegions&) = delete;

  // Takes bytes that came over the socket, and the file that came with them or -1. Takes ownership of the file. Faults
  // are kept for HasFault.
  void Feed(const char* data, size_t bytes, int fd);
  // Records that a file did not arrive because this process has no descriptor left.
  void MissFile() { Fault({"the file of registered memory", 0, 0, EMFILE}); }
  bool HasFault(ShmFault* fault);

  // Returns the memory at `place`; null when it is unknown or not that large. Each success holds the region until
  // Release, which takes what Hold returned. A region for which there is no address space is copied from its file.
  const std::byte* Hold(const ShmPlace& place, uint32_t bytes);
  void Release(uint64_t region, const std::byte* data);

  uint64_t mapped_bytes() const { return mapped_.load(std::memory_order_relaxed); }

 private:
  struct Region {
    uint64_t id = 0;
    std::byte* base = nullptr;  // Null when it cannot be mapped.
    uint64_t bytes = 0;
    int file = -1;  // Open only when it cannot be mapped.
    uint32_t holds = 0;
    bool forgotten = false;  // Removed by the peer; unmapped with the last hold.
  };

  // What Hold returned of a region that cannot be mapped. The memory is used again.
  struct Copied {
    std::unique_ptr<std::byte[]> memory;
    uint32_t bytes = 0;
    bool held = false;
  };

  const std::byte* Copy(const Region& region, uint64_t offset, uint32_t bytes);
  void OnNotice(const ShmNotice& notice, const SharedDeviceMemory& shared);
  void Share(const ShmNotice& notice);
  Region* Find(uint64_t id);
  void Unmap(Region* region);
  void Fault(const ShmFault& fault);

  const OnDevice on_device_;
  std::vector<Region> regions_;
  std::vector<Copied> copies_;
  char partial_[sizeof(ShmNotice) + sizeof(SharedDeviceMemory)];  // A notice that has arrived in part.
  size_t partial_bytes_ = 0;
  int file_ = -1;       // File for the next notice that shares a region.
  int next_file_ = -1;  // File for the one after that: the rest of one may come together with the next.
  ShmFault fault_;
  std::atomic<uint64_t> mapped_{0};
};

}  // namespace annulus
