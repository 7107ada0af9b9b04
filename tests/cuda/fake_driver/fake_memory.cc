#include "tests/cuda/fake_driver/fake_memory.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

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
  allocations_[memory] = {device, bytes, ++last_id_};
  lost_.erase(memory);
  // As memory that others had before.
  std::memset(memory_.Translate(memory, bytes), 0xa5, bytes);
  return memory;
}

// The process in the path of a file.
std::string ProcessOf(const std::string& file) { return file.substr(0, file.find("/fd/")); }

// A name is the owner's process, its file, the size, a number, the device and the address.
bool FakeMemory::Export(const std::byte* memory, IpcMemHandle* handle) {
  const auto allocation = allocations_.find(memory);
  if (allocation == allocations_.end()) return false;
  allocation->second.is_exported = true;
  const std::string file = memory_.FileOf(memory);
  *handle = IpcMemHandle();
  const uint64_t numbers[] = {allocation->second.bytes, allocation->second.id,
                              static_cast<uint64_t>(peers_.OnMachine(allocation->second.device)),
                              reinterpret_cast<uint64_t>(memory)};
  static_assert(sizeof numbers < sizeof handle->bytes);
  std::memcpy(handle->bytes, numbers, sizeof numbers);
  std::snprintf(reinterpret_cast<char*>(handle->bytes) + sizeof numbers, sizeof handle->bytes - sizeof numbers, "%s",
                file.c_str());
  return true;
}

Result FakeMemory::Import(int device, const IpcMemHandle& handle, std::byte** memory) {
  uint64_t numbers[4];
  std::memcpy(numbers, handle.bytes, sizeof numbers);
  const char* const file = reinterpret_cast<const char*>(handle.bytes) + sizeof numbers;
  // A driver refuses its own process's memory.
  if (std::string_view(file).starts_with("/proc/" + std::to_string(getpid()) + "/")) return Result::kInvalidContext;
  const int on_machine = static_cast<int>(numbers[2]);
  if (!peers_.CanAccess(device, on_machine)) return Result::kPeerAccessUnsupported;
  const std::string process = ProcessOf(file);
  for (const auto& [begin, other] : allocations_) {
    const bool is_of_it = other.is_import && other.device == device && other.owner == process;
    if (is_of_it && other.owned < numbers[3] + numbers[0] && numbers[3] < other.owned + other.bytes)
      return Result::kAlreadyMapped;
  }
  *memory = memory_.Adopt(file, numbers[0]);
  if (*memory == nullptr) return Result::kInvalidContext;
  allocations_[*memory] = {device, numbers[0], ++last_id_, true, true, process, numbers[3]};
  lost_.erase(*memory);
  // As if the program had asked for it.
  const int owner = peers_.InProcess(on_machine);
  if (owner >= 0 && owner != device) peers_.Enable(device, owner);
  return Result::kSuccess;
}

std::map<const std::byte*, FakeMemory::Allocation>::const_iterator FakeMemory::Find(const std::byte* memory) const {
  const auto after = allocations_.upper_bound(memory);
  if (after == allocations_.begin()) return allocations_.end();
  const auto allocation = std::prev(after);
  return memory < allocation->first + allocation->second.bytes ? allocation : allocations_.end();
}

std::string FakeMemory::FileOf(const std::byte* memory, size_t bytes) const {
  const auto allocation = allocations_.find(memory);
  const bool is_whole = allocation != allocations_.end() && PagesOf(memory, allocation->second.bytes).bytes == bytes;
  return is_whole ? memory_.FileOf(memory) : "";
}

uint64_t FakeMemory::IdOf(const std::byte* memory) const {
  constexpr uint64_t kVirtual = uint64_t{1} << 63;
  const auto allocation = Find(memory);
  if (allocation != allocations_.end()) return allocation->second.id;
  const MemoryRange reserved = virtual_.ReservedAt(memory);
  return reserved.bytes > 0 ? kVirtual | reinterpret_cast<uintptr_t>(reserved.begin) : 0;
}

bool FakeMemory::IsExported(const std::byte* memory) const {
  const auto allocation = Find(memory);
  return allocation != allocations_.end() ? allocation->second.is_exported : virtual_.IsExported(memory);
}

bool FakeMemory::Free(const std::byte* memory) {
  if (allocations_.erase(memory) == 0) return false;
  memory_.Free(const_cast<std::byte*>(memory), keeps_addresses_);
  return true;
}

int FakeMemory::DeviceOf(const std::byte* memory) const {
  const auto allocation = Find(memory);
  return allocation == allocations_.end() ? virtual_.DeviceOf(memory) : allocation->second.device;
}

MemoryRange FakeMemory::AllocationAt(const std::byte* memory) const {
  const auto found = allocations_.find(memory);
  return found == allocations_.end() ? MemoryRange() : MemoryRange{memory, found->second.bytes};
}

Result FakeMemory::Pin(int device, const std::byte* memory, size_t bytes) {
  for (const auto& [begin, pinned] : pinned_) {
    if (PagesOf(begin, pinned.bytes).Overlaps(PagesOf(memory, bytes))) return Result::kHostMemoryAlreadyRegistered;
  }
  pinned_[memory] = {bytes, device};
  lost_.erase(memory);
  return Result::kSuccess;
}

int64_t FakeMemory::Lose(int device) {
  int64_t imports = 0;
  for (auto each = allocations_.begin(); each != allocations_.end();) {
    const std::byte* const memory = (each++)->first;
    if (allocations_[memory].device != device) continue;
    imports += allocations_[memory].is_import ? 1 : 0;
    Free(memory);
    lost_.insert(memory);
  }
  for (const auto& [begin, pinned] : pinned_) {
    if (pinned.device == device) lost_.insert(begin);
  }
  std::erase_if(pinned_, [=](const auto& each) { return each.second.device == device; });
  peers_.Forget(device);
  return imports;
}

MemoryRange FakeMemory::PinnedAt(const std::byte* memory) const {
  const auto found = pinned_.find(memory);
  return found == pinned_.end() ? MemoryRange() : MemoryRange{memory, found->second.bytes};
}

MemoryRange FakeMemory::RangeAround(const std::byte* memory) const {
  const auto pinned = pinned_.upper_bound(memory);
  if (IsPinned(memory, 1)) return {std::prev(pinned)->first, std::prev(pinned)->second.bytes};
  const auto allocation = Find(memory);
  if (allocation != allocations_.end()) return {allocation->first, allocation->second.bytes};
  return virtual_.DeviceOf(memory) < 0 ? MemoryRange() : virtual_.ReservedAt(memory);
}

bool FakeMemory::IsPinned(const std::byte* memory, size_t bytes) const {
  const auto after = pinned_.upper_bound(memory);
  if (after == pinned_.begin()) return false;
  const auto range = std::prev(after);
  const std::byte* const end = range->first + range->second.bytes;
  return memory + bytes <= end && memory < end;
}

size_t FakeMemory::pinned_bytes() const {
  size_t sum = 0;
  for (const auto& [begin, pinned] : pinned_) sum += pinned.bytes;
  return sum;
}

std::byte* FakeMemory::Access(int device, const std::byte* memory, size_t bytes) const {
  if (IsPinned(memory, bytes)) return const_cast<std::byte*>(memory);
  if (virtual_.ReservedAt(memory).bytes > 0) return virtual_.Access(device, memory, bytes);
  const auto after = allocations_.upper_bound(memory);
  if (after == allocations_.begin()) return nullptr;
  const auto allocation = std::prev(after);
  const size_t offset = static_cast<size_t>(memory - allocation->first);
  const Allocation& found = allocation->second;
  const bool is_let_in = found.is_import ? found.device == device : peers_.IsEnabled(device, found.device);
  if (!is_let_in || offset > found.bytes) return nullptr;
  if (bytes > found.bytes - offset) return nullptr;
  return memory_.Translate(memory, bytes);
}

std::byte* FakeMemory::AccessAtomically(int device, const std::byte* memory, size_t bytes) const {
  const int owner = DeviceOf(memory);
  const bool has_atomics =
      owner < 0 || owner == device || peers_.LinkTo(device, peers_.OnMachine(owner)) == FakeLink::kNvlink;
  return has_atomics ? Access(device, memory, bytes) : nullptr;
}

}  // namespace annulus::cuda
