// SlotMemory: memory for slots and staging, which the CPU, transports and the devices of this process can all access.
//
// Whoever needs such memory allocates it here, or registers memory that it has from elsewhere, such as a mapping that
// two processes share. A device may have to pin it, or make it in its own way; for host memory alone nothing is needed.
// So backends know of no device.
//
// Threads: all functions may be called from any thread, except that a SlotBlock and a SlotRegistration belong to one
// thread at a time.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace annulus {

class DeviceExports;

class SlotMemory {
 public:
  static constexpr size_t kAlignment = 64;  // Bytes.

  virtual ~SlotMemory() = default;

  // Returns `bytes` of memory aligned to kAlignment, with any content; null when there is none.
  virtual std::byte* AllocateSlots(size_t bytes) = 0;
  virtual void FreeSlots(std::byte* slots, size_t bytes) = 0;

  // Makes [slots, slots + bytes) usable for devices until UnregisterSlots. The memory must stay mapped until then.
  // Errors: kOutOfMemory or kSystem of a device.
  virtual Status RegisterSlots(std::byte* slots, size_t bytes) = 0;
  virtual void UnregisterSlots(std::byte* slots, size_t bytes) = 0;

  // What its devices can export of their own memory (device_exports.h); null: nothing. Constant.
  virtual const DeviceExports* exports() const { return nullptr; }
};

// Host memory as AllocateSlots returns it when there is no device, and its end.
std::byte* AllocateHostSlots(size_t bytes);
void FreeHostSlots(std::byte* slots);

// Slots that are freed with the block.
class SlotBlock {
 public:
  SlotBlock() = default;
  // `memory` outlives the block; null: plain host memory.
  SlotBlock(SlotMemory* memory, size_t bytes);
  ~SlotBlock();
  SlotBlock(const SlotBlock&) = delete;
  SlotBlock& operator=(const SlotBlock&) = delete;

  // Null when the memory could not be allocated.
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  SlotMemory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A SlotBlock filled with zeros. Lets std::bad_alloc through, as the standard containers do.
class ZeroedSlotBlock : public SlotBlock {
 public:
  ZeroedSlotBlock(SlotMemory* memory, size_t bytes);
};

// Slots that are registered as long as the registration lives.
class SlotRegistration {
 public:
  SlotRegistration() = default;
  ~SlotRegistration() { End(); }
  SlotRegistration(SlotRegistration&& other) noexcept { *this = static_cast<SlotRegistration&&>(other); }
  SlotRegistration& operator=(SlotRegistration&& other) noexcept;

  // Registers a range. `memory` outlives the registration; null: there is no device that needs it.
  // Errors: those of RegisterSlots.
  static Status Make(SlotMemory* memory, std::byte* slots, size_t bytes, SlotRegistration* registration);

  // Where the slots are registered; null: nowhere.
  SlotMemory* memory() const { return memory_; }

 private:
  void End();

  SlotMemory* memory_ = nullptr;
  std::byte* slots_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace annulus
