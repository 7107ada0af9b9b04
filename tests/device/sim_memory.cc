// One memory file per allocation, mapped without any rights for users and readable and writable for the device.
#include "tests/device/sim_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace annulus {

SimMemory::~SimMemory() {
  for (const Region& region : regions_) {
    munmap(region.shown, region.bytes);
    munmap(region.alias, region.bytes);
  }
}

std::byte* SimMemory::Allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  const int fd = memfd_create("annulus-sim-device", MFD_CLOEXEC);
  ANNULUS_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  void* shown = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
  void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ANNULUS_CHECK(shown != MAP_FAILED && alias != MAP_FAILED);
  close(fd);
  regions_.push_back({static_cast<std::byte*>(shown), static_cast<std::byte*>(alias), bytes});
  return regions_.back().shown;
}

const SimMemory::Region* SimMemory::Find(const std::byte* address) const {
  for (const Region& region : regions_) {
    if (address >= region.shown && address < region.shown + region.bytes) return &region;
  }
  return nullptr;
}

std::byte* SimMemory::Translate(const std::byte* address, size_t bytes) const {
  const Region* region = Find(address);
  if (region == nullptr) return const_cast<std::byte*>(address);
  const size_t offset = static_cast<size_t>(address - region->shown);
  ANNULUS_CHECK(bytes <= region->bytes - offset);
  return region->alias + offset;
}

}  // namespace annulus
