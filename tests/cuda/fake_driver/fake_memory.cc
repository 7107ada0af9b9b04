#include "tests/cuda/fake_driver/fake_memory.h"

#include <cstdint>
#include <cstring>
#include <iterator>

namespace annulus::cuda {
namespace {

constexpr uintptr_t kPageBytes = 4096;

MemoryRange PagesOf(const std::byte* memory, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / kPageBytes * kPageBytes;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return {reinterpret_cast<const std::byte*>(begin), end - begin};
}

}  // namespace

std::byte* FakeMemory::Allocate(int device, size_t bytes) {
  std::byte* const memory = memory_.Allocate(bytes);
  allocations_[memory] = {device, bytes};
  // As memory that others had before.
  std::memset(memory_.Translate(memory, bytes), 0xa5, bytes);
  return memory;
}

bool FakeMemory::Free(const std::byte* memory) {
  if (allocations_.erase(memory) == 0) return false;
  memory_.Free(const_cast<std::byte*>(memory), keeps_addresses_);
  return true;
}

int FakeMemory::DeviceOf(const std::byte* memory) const {
  const auto after = allocations_.upper_bound(memory);
  if (after == allocations_.begin()) return -1;
  const auto allocation = std::prev(after);
  return memory < allocation->first + allocation->second.bytes ? allocation->second.device : -1;
}

MemoryRange FakeMemory::AllocationAt(const std::byte* memory) const {
  const auto found = allocations_.find(memory);
  return found == allocations_.end() ? MemoryRange() : MemoryRange{memory, found->second.bytes};
}

Result FakeMemory::Pin(const std::byte* memory, size_t bytes) {
  for (const auto& [begin, size] : pinned_) {
    if (PagesOf(begin, size).Overlaps(PagesOf(memory, bytes))) return Result::kHostMemoryAlreadyRegistered;
  }
  pinned_[memory] = bytes;
  return Result::kSuccess;
}

MemoryRange FakeMemory::PinnedAt(const std::byte* memory) const {
  const auto found = pinned_.find(memory);
  return found == pinned_.end() ? MemoryRange() : MemoryRange{memory, found->second};
}

MemoryRange FakeMemory::RangeAround(const std::byte* memory) const {
  const auto pinned = pinned_.upper_bound(memory);
  if (IsPinned(memory, 1)) return {std::prev(pinned)->first, std::prev(pinned)->second};
  return DeviceOf(memory) < 0 ? MemoryRange() : AllocationAt(std::prev(allocations_.upper_bound(memory))->first);
}

bool FakeMemory::IsPinned(const std::byte* memory, size_t bytes) const {
  const auto after = pinned_.upper_bound(memory);
  if (after == pinned_.begin()) return false;
  const auto range = std::prev(after);
  return memory + bytes <= range->first + range->second && memory < range->first + range->second;
}

size_t FakeMemory::pinned_bytes() const {
  size_t sum = 0;
  for (const auto& [begin, bytes] : pinned_) sum += bytes;
  return sum;
}

std::byte* FakeMemory::Access(int device, const std::byte* memory, size_t bytes) const {
  if (IsPinned(memory, bytes)) return const_cast<std::byte*>(memory);
  const auto after = allocations_.upper_bound(memory);
  if (after == allocations_.begin()) return nullptr;
  const auto allocation = std::prev(after);
  const size_t offset = static_cast<size_t>(memory - allocation->first);
  if (allocation->second.device != device || offset > allocation->second.bytes) return nullptr;
  if (bytes > allocation->second.bytes - offset) return nullptr;
  return memory_.Translate(memory, bytes);
}

}  // namespace annulus::cuda
