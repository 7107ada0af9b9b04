#include "transport/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/file_limit.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/memory_pages.h"

namespace annulus {
namespace {

std::string AddressText(const void* memory) {
  char text[32];
  std::snprintf(text, sizeof(text), "%#lx", static_cast<unsigned long>(reinterpret_cast<uintptr_t>(memory)));
  return text;
}

std::string Describe(const void* memory, size_t bytes) {
  return std::to_string(bytes) + " bytes at " + AddressText(memory);
}

Status Invalid(const char* call, const std::string& why) { return Status::Invalid(std::string(call) + ": " + why); }

// A memory file of that size, sealed.
Status MakeFile(size_t bytes, int* fd) {
  *fd = memfd_create("annulus-registered", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return Status::System("memfd_create", errno);
  const FileLimitGuard guard;
  if (ftruncate(*fd, static_cast<off_t>(bytes)) == 0 &&
      fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    return Status();
  }
  const int error = errno;
  close(*fd);
  if (error == EFBIG || error == EINVAL)
    return {Code::kOutOfMemory,
            "a memory file of " + std::to_string(bytes) + " bytes is too large" + FileLimitText(error)};
  return Status::System("a memory file of " + std::to_string(bytes) + " bytes", error);
}

}  // namespace

MemoryRegion::MemoryRegion(uint64_t id, std::byte* begin, size_t bytes, int fd)
    : id(id), begin(begin), bytes(bytes), fd(fd), maker_(getpid()) {}

MemoryRegion::~MemoryRegion() { close(fd); }

// Peers drop their mappings when they next look.
void MemoryRegion::GiveBack() const {
  if (getpid() != maker_) return;
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
}

Status MemoryRegistry::Allocate(size_t bytes, void** memory) {
  if (bytes == 0 || memory == nullptr)
    return Invalid("mem_alloc", bytes == 0 ? "0 bytes" : "the place for the address is null");
  if (bytes > SIZE_MAX / 2) return {Code::kOutOfMemory, "mem_alloc: " + std::to_string(bytes) + " bytes are too many"};
  const size_t whole = RoundUpToPage(bytes);
  int fd = -1;
  ANNULUS_RETURN_IF_ERROR(MakeFile(whole, &fd));
  std::byte* const mapped = MapPages(whole, fd);
  if (mapped == nullptr) {
    close(fd);
    return {Code::kOutOfMemory, "no address space for " + std::to_string(whole) + " bytes"};
  }
  std::lock_guard<std::mutex> lock(mu_);
  entries_[mapped] = {std::make_shared<MemoryRegion>(next_id_++, mapped, whole, fd), bytes, true};
  version_.fetch_add(1, std::memory_order_release);
  *memory = mapped;
  return Status();
}

Status MemoryRegistry::Drop(void* memory, bool allocated, Entry* entry) {
  const auto found = entries_.find(static_cast<const std::byte*>(memory));
  if (found == entries_.end() || found->second.allocated != allocated) {
    return Invalid(allocated ? "mem_free" : "mem_deregister",
                   AddressText(memory) + (allocated ? " is not what mem_alloc returned" : " is not registered"));
  }
  *entry = found->second;
  for (MemoryHolder* holder : holders_) {
    if (entry->region != nullptr) holder->Forget(entry->region->id);
  }
  entries_.erase(found);
  version_.fetch_add(1, std::memory_order_release);
  return Status();
}

Status MemoryRegistry::Free(void* memory) {
  std::lock_guard<std::mutex> lock(mu_);
  Entry entry;
  ANNULUS_RETURN_IF_ERROR(Drop(memory, true, &entry));
  entry.region->GiveBack();
  munmap(entry.region->begin, entry.region->bytes);
  return Status();
}

bool MemoryRegistry::Overlaps(const std::byte* begin, size_t bytes) const {
  auto next = entries_.lower_bound(begin);
  if (next != entries_.end() && next->first < begin + bytes) return true;
  return next != entries_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > begin;
}

Status MemoryRegistry::Register(void* memory, size_t bytes) {
  if (memory == nullptr || bytes == 0) return Invalid("mem_register", memory == nullptr ? "memory is null" : "0 bytes");
  std::byte* const begin = static_cast<std::byte*>(memory);
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(memory))
    return Invalid("mem_register", Describe(memory, bytes) + " end beyond all addresses");
  std::lock_guard<std::mutex> lock(mu_);
  if (Overlaps(begin, bytes)) return Invalid("mem_register", Describe(memory, bytes) + " overlap registered memory");
  std::byte* const first =
      begin + (RoundUpToPage(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin));
  const std::byte* const end = begin + bytes;
  const size_t whole = end > first ? static_cast<size_t>(end - first) / PageBytes() * PageBytes() : 0;
  Entry entry{nullptr, bytes, false};
  if (whole > 0) {
    ANNULUS_RETURN_IF_ERROR(CheckPrivateAnonymous(first, whole));
    int fd = -1;
    ANNULUS_RETURN_IF_ERROR(MakeFile(whole, &fd));
    auto region = std::make_shared<MemoryRegion>(next_id_++, first, whole, fd);
    ANNULUS_RETURN_IF_ERROR(MovePagesToFile(first, whole, fd));
    entry.region = std::move(region);
  }
  entries_[begin] = std::move(entry);
  version_.fetch_add(1, std::memory_order_release);
  return Status();
}

Status MemoryRegistry::Deregister(void* memory) {
  std::lock_guard<std::mutex> lock(mu_);
  Entry entry;
  ANNULUS_RETURN_IF_ERROR(Drop(memory, false, &entry));
  if (entry.region == nullptr) return Status();
  ANNULUS_RETURN_IF_ERROR(MovePagesBack(entry.region->begin, entry.region->bytes));
  entry.region->GiveBack();
  return Status();
}

MemoryRegions MemoryRegistry::Regions() const {
  std::lock_guard<std::mutex> lock(mu_);
  MemoryRegions regions;
  for (const auto& [address, entry] : entries_) {
    if (entry.region != nullptr) regions.push_back(entry.region);
  }
  return regions;
}

void MemoryRegistry::AddHolder(MemoryHolder* holder) const {
  std::lock_guard<std::mutex> lock(mu_);
  holders_.push_back(holder);
}

void MemoryRegistry::RemoveHolder(MemoryHolder* holder) const {
  std::lock_guard<std::mutex> lock(mu_);
  std::erase(holders_, holder);
}

size_t MemoryRegistry::bytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  size_t sum = 0;
  for (const auto& [address, entry] : entries_) sum += entry.region != nullptr ? entry.region->bytes : 0;
  return sum;
}

}  // namespace annulus
