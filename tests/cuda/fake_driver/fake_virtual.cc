#include "tests/cuda/fake_driver/fake_virtual.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

namespace annulus::cuda {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr char kFilePrefix[] = "/memfd:annulus-vmm-";

bool IsWhole(size_t bytes) { return bytes > 0 && bytes % FakeVirtual::kGranularity == 0; }
bool IsWhole(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory) % FakeVirtual::kGranularity == 0; }

// Reserves `bytes` bytes at a multiple of the granularity; null: there are none.
std::byte* ReserveAligned(size_t bytes) {
  const size_t more = bytes + FakeVirtual::kGranularity;
  if (more < bytes) return nullptr;
  void* const mapped = mmap(nullptr, more, PROT_NONE, kReserved, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = (FakeVirtual::kGranularity - reinterpret_cast<uintptr_t>(begin) % FakeVirtual::kGranularity) %
                        FakeVirtual::kGranularity;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, FakeVirtual::kGranularity - before);
  return begin + before;
}

}  // namespace

FakeVirtual::~FakeVirtual() {
  for (const auto& [begin, range] : ranges_) {
    munmap(const_cast<std::byte*>(begin), range.bytes);
    munmap(range.alias, range.bytes);
  }
  for (const auto& [handle, allocation] : handles_) close(allocation.file);
}

Result FakeVirtual::Create(int device, size_t bytes, bool has_files, AllocationHandle* handle) {
  if (!IsWhole(bytes)) return Result::kInvalidValue;
  const int on_machine = peers_.OnMachine(device);
  const int file = memfd_create(("annulus-vmm-" + std::to_string(on_machine)).c_str(), MFD_CLOEXEC);
  if (file < 0) return Result::kOutOfMemory;
  // As memory that others had before.
  const std::vector<unsigned char> old(bytes, 0xa5);
  if (write(file, old.data(), bytes) != static_cast<ssize_t>(bytes)) {
    close(file);
    return Result::kOutOfMemory;
  }
  *handle = Add({file, bytes, on_machine, has_files, false});
  return Result::kSuccess;
}

AllocationHandle FakeVirtual::Add(const Allocation& allocation) {
  AllocationHandle free = 1;
  while (handles_.contains(free)) ++free;
  handles_.emplace(free, allocation);
  return free;
}

void FakeVirtual::CloseUnused(AllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found->second.references > 0 || found->second.mappings > 0) return;
  close(found->second.file);
  handles_.erase(found);
}

Result FakeVirtual::Release(AllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.references == 0) return Result::kInvalidValue;
  --found->second.references;
  CloseUnused(handle);
  return Result::kSuccess;
}

Result FakeVirtual::Retain(const std::byte* memory, AllocationHandle* handle) {
  const Mapping* const mapping = Find(memory);
  if (mapping == nullptr) return Result::kInvalidValue;
  ++handles_.at(mapping->handle).references;
  *handle = mapping->handle;
  return Result::kSuccess;
}

Result FakeVirtual::Export(AllocationHandle handle, int* file) {
  const auto found = handles_.find(handle);
  if (found == handles_.end() || found->second.references == 0 || !found->second.has_files) {
    return Result::kInvalidValue;
  }
  *file = fcntl(found->second.file, F_DUPFD_CLOEXEC, 0);
  if (*file < 0) return Result::kUnknown;
  found->second.is_exported = true;
  return Result::kSuccess;
}

Result FakeVirtual::Import(int file, AllocationHandle* handle) {
  char name[64] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (readlink(path.c_str(), name, sizeof name - 1) < 0) return Result::kInvalidValue;
  int device = -1;
  struct stat found {};
  if (std::sscanf(name, (std::string(kFilePrefix) + "%d").c_str(), &device) != 1 || fstat(file, &found) != 0) {
    return Result::kInvalidValue;
  }
  const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return Result::kUnknown;
  *handle = Add({own, static_cast<size_t>(found.st_size), device, true, true});
  return Result::kSuccess;
}

Result FakeVirtual::Reserve(size_t bytes, std::byte** begin) {
  if (!IsWhole(bytes)) return Result::kInvalidValue;
  std::byte* const shown = ReserveAligned(bytes);
  std::byte* const alias = shown != nullptr ? ReserveAligned(bytes) : nullptr;
  if (alias == nullptr) {
    if (shown != nullptr) munmap(shown, bytes);
    return Result::kOutOfMemory;
  }
  ranges_[shown] = {bytes, alias, {}};
  *begin = shown;
  return Result::kSuccess;
}

Result FakeVirtual::FreeRange(const std::byte* begin, size_t bytes) {
  const auto range = ranges_.find(begin);
  if (range == ranges_.end() || range->second.bytes != bytes || !range->second.mapped.empty()) {
    return Result::kInvalidValue;
  }
  munmap(const_cast<std::byte*>(begin), bytes);
  munmap(range->second.alias, bytes);
  ranges_.erase(range);
  return Result::kSuccess;
}

FakeVirtual::Ranges::const_iterator FakeVirtual::RangeAround(const std::byte* memory, size_t bytes) const {
  const auto after = ranges_.upper_bound(memory);
  if (after == ranges_.begin()) return ranges_.end();
  const auto range = std::prev(after);
  const size_t offset = OffsetOf(range, memory);
  return offset < range->second.bytes && bytes <= range->second.bytes - offset ? range : ranges_.end();
}

Result FakeVirtual::Map(const std::byte* begin, size_t bytes, AllocationHandle handle) {
  const auto range = RangeAround(begin, bytes);
  const auto allocation = handles_.find(handle);
  if (range == ranges_.end() || allocation == handles_.end() || allocation->second.references == 0 || !IsWhole(bytes) ||
      !IsWhole(begin) || bytes > allocation->second.bytes) {
    return Result::kInvalidValue;
  }
  const size_t offset = OffsetOf(range, begin);
  for (const auto& [at, mapping] : range->second.mapped) {
    if (at < offset + bytes && offset < at + mapping.bytes) return Result::kInvalidValue;
  }
  std::byte* const alias = range->second.alias + offset;
  if (mmap(alias, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, allocation->second.file, 0) != alias) {
    return Result::kOutOfMemory;
  }
  ranges_[range->first].mapped[offset] = {bytes, handle};
  ++allocation->second.mappings;
  return Result::kSuccess;
}

template <class Use>
bool FakeVirtual::ForEach(const Range& range, size_t offset, size_t bytes, Use use) const {
  size_t next = offset;
  while (next < offset + bytes) {
    const auto mapping = range.mapped.find(next);
    if (mapping == range.mapped.end()) return false;
    use(*mapping);
    next += mapping->second.bytes;
  }
  return next == offset + bytes;
}

Result FakeVirtual::Unmap(const std::byte* begin, size_t bytes) {
  const auto range = RangeAround(begin, bytes);
  if (range == ranges_.end() || bytes == 0) return Result::kInvalidValue;
  std::vector<std::pair<size_t, AllocationHandle>> leaving;
  const bool are_whole = ForEach(range->second, OffsetOf(range, begin), bytes,
                                 [&](const auto& each) { leaving.emplace_back(each.first, each.second.handle); });
  if (!are_whole) return Result::kInvalidValue;
  for (const auto& [offset, handle] : leaving) {
    ranges_[range->first].mapped.erase(offset);
    --handles_.at(handle).mappings;
    CloseUnused(handle);
  }
  mmap(range->second.alias + OffsetOf(range, begin), bytes, PROT_NONE, kReserved | MAP_FIXED, -1, 0);
  return Result::kSuccess;
}

Result FakeVirtual::SetAccess(const std::byte* begin, size_t bytes, int device) {
  const auto range = RangeAround(begin, bytes);
  if (range == ranges_.end() || bytes == 0) return Result::kInvalidValue;
  std::vector<size_t> offsets;
  bool is_reached = true;
  const bool are_whole = ForEach(range->second, OffsetOf(range, begin), bytes, [&](const auto& each) {
    offsets.push_back(each.first);
    is_reached &= peers_.CanAccess(device, handles_.at(each.second.handle).device);
  });
  if (!are_whole) return Result::kInvalidValue;
  if (!is_reached) return Result::kInvalidDevice;
  for (const size_t offset : offsets) ranges_[range->first].mapped[offset].devices |= uint64_t{1} << device;
  return Result::kSuccess;
}

const FakeVirtual::Mapping* FakeVirtual::Find(const std::byte* memory, size_t* offset) const {
  const auto range = RangeAround(memory, 1);
  if (range == ranges_.end()) return nullptr;
  const size_t at = OffsetOf(range, memory);
  const auto after = range->second.mapped.upper_bound(at);
  if (after == range->second.mapped.begin()) return nullptr;
  const auto mapping = std::prev(after);
  if (offset != nullptr) *offset = mapping->first;
  return at < mapping->first + mapping->second.bytes ? &mapping->second : nullptr;
}

int FakeVirtual::DeviceOf(const std::byte* memory) const {
  const Mapping* const mapping = Find(memory);
  if (mapping == nullptr) return -1;
  const int device = peers_.InProcess(handles_.at(mapping->handle).device);
  return device >= 0 ? device : kElsewhere;
}

MemoryRange FakeVirtual::MappingAt(const std::byte* memory) const {
  size_t offset = 0;
  const Mapping* const mapping = Find(memory, &offset);
  if (mapping == nullptr) return {};
  return {RangeAround(memory, 1)->first + offset, mapping->bytes};
}

MemoryRange FakeVirtual::ReservedAt(const std::byte* memory) const {
  const auto range = RangeAround(memory, 1);
  if (range == ranges_.end()) return {};
  return {range->first, range->second.bytes};
}

bool FakeVirtual::HasFiles(const std::byte* memory) const {
  const Mapping* const mapping = Find(memory);
  return mapping != nullptr && handles_.at(mapping->handle).has_files;
}

bool FakeVirtual::IsExported(const std::byte* memory) const {
  const Mapping* const mapping = Find(memory);
  return mapping != nullptr && handles_.at(mapping->handle).is_exported;
}

std::byte* FakeVirtual::Access(int device, const std::byte* memory, size_t bytes) const {
  const auto range = RangeAround(memory, bytes);
  if (range == ranges_.end()) return nullptr;
  const size_t begin = OffsetOf(range, memory);
  size_t next = begin;
  do {
    size_t offset = 0;
    const Mapping* const mapping = Find(range->first + next, &offset);
    if (mapping == nullptr || (mapping->devices >> device & 1) == 0) return nullptr;
    next = offset + mapping->bytes;
  } while (next < begin + bytes);
  return range->second.alias + begin;
}

}  // namespace annulus::cuda
