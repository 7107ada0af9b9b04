// Registered memory on a link: which regions of this process the peer has been given, and which of the peer's are
// mapped here. transport/memory/memory.h makes regions; ShmBell carries the notices.
//
// Threads: as the endpoint, but for ShmPeerRegions::mapped_bytes().
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "transport/memory/memory.h"
#include "transport/shm/shm_format.h"

namespace annulus {

// Bounds on what one end of a link makes the other map: regions beyond them are staged.
constexpr size_t kShmMostRegions = 4096;
constexpr uint64_t kShmMostRegionBytes = uint64_t{1} << 46;

// What this end lets the peer read in place.
class ShmOwnRegions {
 public:
  // Sends a notice, with a file or -1. Returns false when there is no room now.
  using SendNotice = std::function<bool(const ShmNotice& notice, int fd)>;

  // `registry` outlives the object; null: the peer can read nothing in place.
  ShmOwnRegions(const MemoryRegistry* registry, SendNotice send) : registry_(registry), send_(std::move(send)) {}

  // Whether the peer can read [data, data + bytes) in place; tells it of the region where it does not know it yet.
  // Makes system calls only when regions have come or gone.
  bool Find(const std::byte* data, size_t bytes, ShmPlace* place);

 private:
  // Does not keep the region, and its descriptor, alive.
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
  uint64_t version_ = 0;  // Of the registry, when last looked at.
  std::vector<Known> known_;
  std::vector<uint64_t> to_forget_;  // The peer still has to be told.
  size_t at_peer_ = 0;               // Regions that the peer was told of and not to forget.
};

// What of the peer's memory is mapped here, for reading only.
class ShmPeerRegions {
 public:
  ShmPeerRegions() = default;
  ~ShmPeerRegions();
  ShmPeerRegions(const ShmPeerRegions&) = delete;
  ShmPeerRegions& operator=(const ShmPeerRegions&) = delete;

  // Takes what came over the socket, and the file that came with it or -1, which belongs to it then. Faults are kept
  // for TakeFault.
  void Feed(const char* data, size_t bytes, int fd);
  // A file did not arrive, because this process has no descriptor left.
  void MissFile() { Fault({"taking the file of registered memory", 0, 0, EMFILE}); }
  bool TakeFault(ShmFault* fault);

  // The memory behind `place`, null when it is not known or not so large. Each success holds the region until Release.
  const std::byte* Hold(const ShmPlace& place, uint32_t bytes);
  void Release(uint64_t region);

  uint64_t mapped_bytes() const { return mapped_.load(std::memory_order_relaxed); }

 private:
  struct Region {
    uint64_t id = 0;
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    uint32_t holds = 0;
    bool forgotten = false;  // Unmapped with the last hold.
  };

  void Take(const ShmNotice& notice);
  void Share(const ShmNotice& notice);
  Region* Find(uint64_t id);
  void Unmap(Region* region);
  void Fault(const ShmFault& fault);

  std::vector<Region> regions_;
  char partial_[sizeof(ShmNotice)];  // A notice of which not all has come.
  size_t partial_bytes_ = 0;
  int file_ = -1;  // For the next notice that shares.
  ShmFault fault_;
  std::atomic<uint64_t> mapped_{0};
};

}  // namespace annulus
