// SlotPool: the staging buffers of one direction of a link, all of one size, aligned to 64 bytes.
//
// The slot given back last is lent first, because its lines are the most likely to be in the cache. Memory that is
// never lent is never touched, so it costs only address space.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

class SlotPool {
 public:
  // `memory` as TransportConfig::slot_memory.
  SlotPool(SlotMemory* memory, size_t slot_bytes, int slots)
      : stride_(RoundUp(slot_bytes)), block_(memory, stride_ * static_cast<size_t>(slots)) {
    free_.reserve(static_cast<size_t>(slots));
    for (int i = slots - 1; i >= 0 && valid(); --i) free_.push_back(block_.data() + stride_ * static_cast<size_t>(i));
  }

  // False when the memory could not be allocated.
  bool valid() const { return block_.data() != nullptr; }

  size_t bytes() const { return block_.bytes(); }

  // Null when all are lent.
  std::byte* Lend() {
    if (free_.empty()) return nullptr;
    std::byte* slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void Give(std::byte* slot) {
    ANNULUS_CHECK(Owns(slot) && free_.size() < free_.capacity());
    free_.push_back(slot);
  }

  bool Owns(const std::byte* data) const { return data >= block_.data() && data < block_.data() + block_.bytes(); }

 private:
  static size_t RoundUp(size_t bytes) {
    return (bytes + SlotMemory::kAlignment - 1) / SlotMemory::kAlignment * SlotMemory::kAlignment;
  }

  size_t stride_;
  SlotBlock block_;
  std::vector<std::byte*> free_;
};

}  // namespace annulus
