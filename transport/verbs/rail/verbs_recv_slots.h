// VerbsRecvSlots: the slots that the peer writes over any rail, each with its header before it, and which of them hold
// a slice.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/rail/verbs_format.h"

namespace annulus {

class VerbsRecvSlots {
 public:
  VerbsRecvSlots(int slots, size_t slot_bytes, std::byte* memory)
      : count_(static_cast<uint32_t>(slots)), bytes_(slot_bytes), memory_(memory) {}

  static size_t MemoryBytes(int slots, size_t slot_bytes) {
    return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes);
  }

  uint32_t count() const { return count_; }
  size_t bytes() const { return bytes_; }
  // Where header and data of a slot begin.
  std::byte* At(uint32_t slot) const { return memory_ + slot * VerbsSlotStride(bytes_); }
  bool Has(const std::byte* data) const { return data >= At(0) && data < At(count_); }

  // These return false when the slot holds a slice already, or none.
  bool Use(uint32_t slot) {
    const uint64_t bit = uint64_t{1} << slot;
    const bool was_free = (used_ & bit) == 0;
    used_ |= bit;
    return was_free;
  }
  bool Free(uint32_t slot) {
    const uint64_t bit = uint64_t{1} << slot;
    const bool was_used = (used_ & bit) != 0;
    used_ &= ~bit;
    return was_used;
  }

 private:
  const uint32_t count_;
  const size_t bytes_;
  std::byte* const memory_;
  uint64_t used_ = 0;  // One bit each.
};

}  // namespace annulus
