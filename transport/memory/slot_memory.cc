#include "transport/memory/slot_memory.h"

#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace annulus {
namespace {

constexpr std::align_val_t kSlotAlignment{SlotMemory::kAlignment};

}  // namespace

std::byte* AllocateHostSlots(size_t bytes) {
  return static_cast<std::byte*>(::operator new(bytes, kSlotAlignment, std::nothrow));
}

void FreeHostSlots(std::byte* slots) { ::operator delete(slots, kSlotAlignment); }

SlotBlock::SlotBlock(SlotMemory* memory, size_t bytes) : memory_(memory), bytes_(bytes) {
  data_ = memory_ != nullptr ? memory_->AllocateSlots(bytes) : AllocateHostSlots(bytes);
}

SlotBlock::~SlotBlock() {
  if (data_ == nullptr) return;
  if (memory_ != nullptr) {
    memory_->FreeSlots(data_, bytes_);
  } else {
    FreeHostSlots(data_);
  }
}

ZeroedSlotBlock::ZeroedSlotBlock(SlotMemory* memory, size_t bytes) : SlotBlock(memory, bytes) {
  if (data() == nullptr) std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
  std::memset(data(), 0, bytes);
}

SlotRegistration& SlotRegistration::operator=(SlotRegistration&& other) noexcept {
  if (this == &other) return *this;
  End();
  memory_ = std::exchange(other.memory_, nullptr);
  slots_ = other.slots_;
  bytes_ = other.bytes_;
  return *this;
}

Status SlotRegistration::Make(SlotMemory* memory, std::byte* slots, size_t bytes, SlotRegistration* registration) {
  if (memory == nullptr) return Status();
  ANNULUS_RETURN_IF_ERROR(memory->RegisterSlots(slots, bytes));
  SlotRegistration made;
  made.memory_ = memory;
  made.slots_ = slots;
  made.bytes_ = bytes;
  *registration = std::move(made);
  return Status();
}

void SlotRegistration::End() {
  if (memory_ != nullptr) memory_->UnregisterSlots(slots_, bytes_);
  memory_ = nullptr;
}

}  // namespace annulus
