// MemoryDomains: the memory domains of a process: host memory and any others. Finds the domain of a pointer, and makes
// slots that all domains can access.
//
// Threads: Add and Remove while nothing else uses the list; everything else from any thread.
#pragma once

#include <span>
#include <vector>

#include "collectives/reduce/memory_domain.h"

namespace annulus {

class MemoryDomains final : public SlotMemory {
 public:
  // Adds a domain, which outlives its place in the list. No communicator may exist.
  void Add(MemoryDomain* domain);
  void Remove(MemoryDomain* domain);

  // The domains beside host memory, in the order in which they were added.
  std::span<MemoryDomain* const> devices() const { return devices_; }

  // The domain of `pointer`: the first device that owns it, host memory when none does.
  MemoryDomain* Of(const void* pointer);

  // The first device makes slots, since it may need memory of a certain form; they are registered with the others.
  std::byte* AllocateSlots(size_t bytes) override;
  void FreeSlots(std::byte* slots, size_t bytes) override;
  // Registers with every device, or with none when one fails.
  Status RegisterSlots(std::byte* slots, size_t bytes) override;
  void UnregisterSlots(std::byte* slots, size_t bytes) override;
  // The exports of the first device that has any.
  const DeviceExports* exports() const override;

 private:
  using Devices = std::span<MemoryDomain* const>;

  MemoryDomain* Maker() { return devices_.empty() ? &host_ : devices_.front(); }
  Devices OthersThanMaker() const { return Devices(devices_).subspan(devices_.empty() ? 0 : 1); }
  static Status RegisterWith(Devices devices, std::byte* slots, size_t bytes);
  static void UnregisterWith(Devices devices, std::byte* slots, size_t bytes);

  HostDomain host_;
  std::vector<MemoryDomain*> devices_;
};

}  // namespace annulus
