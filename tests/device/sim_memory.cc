// One memory file per allocation, mapped without any rights for users and readable and writable for the device. It
// stays open, so that other processes find it.
#include "tests/device/sim_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace annulus {

SimMemory::~SimMemory() {
  while (!regions_.empty()) Free(const_cast<std::byte*>(regions_.begin()->first));
}

std::byte* SimMemory::Allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  const int fd = memfd_create("annulus-sim-device", MFD_CLOEXEC);
  ANNULUS_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  return Map(fd, bytes);
}

std::byte* SimMemory::Map(int file, size_t bytes) {
  void* shown = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ANNULUS_CHECK(shown != MAP_FAILED && alias != MAP_FAILED);
  regions_[static_cast<std::byte*>(shown)] = {static_cast<std::byte*>(alias), bytes, file};
  return static_cast<std::byte*>(shown);
}

std::byte* SimMemory::Adopt(const std::string& file, size_t bytes) {
  const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found {};
  if (fd >= 0 && fstat(fd, &found) == 0 && static_cast<size_t>(found.st_size) == bytes) return Map(fd, bytes);
  if (fd >= 0) close(fd);
  return nullptr;
}

std::string SimMemory::FileOf(const std::byte* shown) const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(regions_.at(shown).file);
}

void SimMemory::Free(std::byte* shown, bool keeps_address) {
  const auto region = regions_.find(shown);
  ANNULUS_CHECK(region != regions_.end());
  if (!keeps_address) {
    munmap(shown, region->second.bytes);
  } else {
    constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    ANNULUS_CHECK(mmap(shown, region->second.bytes, PROT_NONE, kReserved, -1, 0) == shown);
  }
  munmap(region->second.alias, region->second.bytes);
  close(region->second.file);
  regions_.erase(region);
}

SimMemory::Regions::const_iterator SimMemory::Find(const std::byte* address) const {
  const auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return regions_.end();
  const auto region = std::prev(after);
  return address < region->first + region->second.bytes ? region : regions_.end();
}

std::byte* SimMemory::Translate(const std::byte* address, size_t bytes) const {
  const auto region = Find(address);
  if (region == regions_.end()) return const_cast<std::byte*>(address);
  const size_t offset = static_cast<size_t>(address - region->first);
  ANNULUS_CHECK(bytes <= region->second.bytes - offset);
  return region->second.alias + offset;
}

}  // namespace annulus
