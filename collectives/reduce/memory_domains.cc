#include "collectives/reduce/memory_domains.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {

void MemoryDomains::Add(MemoryDomain* domain) {
  ANNULUS_CHECK(domain->kind() != MemoryKind::kHost);
  devices_.push_back(domain);
}

void MemoryDomains::Remove(MemoryDomain* domain) { std::erase(devices_, domain); }

MemoryDomain* MemoryDomains::Of(const void* pointer) {
  const auto owner =
      std::find_if(devices_.begin(), devices_.end(), [=](const MemoryDomain* each) { return each->Owns(pointer); });
  return owner != devices_.end() ? *owner : &host_;
}

Status MemoryDomains::RegisterWith(Devices devices, std::byte* slots, size_t bytes) {
  for (size_t i = 0; i < devices.size(); ++i) {
    Status status = devices[i]->RegisterSlots(slots, bytes);
    if (status.ok()) continue;
    UnregisterWith(devices.first(i), slots, bytes);
    return status;
  }
  return Status();
}

void MemoryDomains::UnregisterWith(Devices devices, std::byte* slots, size_t bytes) {
  for (MemoryDomain* const device : devices) device->UnregisterSlots(slots, bytes);
}

std::byte* MemoryDomains::AllocateSlots(size_t bytes) {
  std::byte* const slots = Maker()->AllocateSlots(bytes);
  if (slots == nullptr || RegisterWith(OthersThanMaker(), slots, bytes).ok()) return slots;
  Maker()->FreeSlots(slots, bytes);
  return nullptr;
}

void MemoryDomains::FreeSlots(std::byte* slots, size_t bytes) {
  UnregisterWith(OthersThanMaker(), slots, bytes);
  Maker()->FreeSlots(slots, bytes);
}

Status MemoryDomains::RegisterSlots(std::byte* slots, size_t bytes) { return RegisterWith(devices_, slots, bytes); }

const DeviceExports* MemoryDomains::exports() const {
  for (const MemoryDomain* const device : devices_) {
    if (device->exports() != nullptr) return device->exports();
  }
  return nullptr;
}

void MemoryDomains::UnregisterSlots(std::byte* slots, size_t bytes) { UnregisterWith(devices_, slots, bytes); }

}  // namespace annulus
