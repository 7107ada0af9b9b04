// SlotPool: the staging buffers of one direction of a link, all of one size, aligned to 64 bytes.
//
// The slot given back last is lent first, because its lines are the most likely to be in the cache. Memory that is
// never lent is never touched, so it costs only address space.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/check.h"

namespace annulus {

class SlotPool {
 public:
  SlotPool(size_t slot_bytes, int slots) : stride_(RoundUp(slot_bytes)), bytes_(stride_ * static_cast<size_t>(slots)) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes_)));
    free_.reserve(static_cast<size_t>(slots));
    for (int i = slots - 1; i >= 0 && memory_; --i) free_.push_back(memory_.get() + stride_ * static_cast<size_t>(i));
  }

  // False when the memory could not be allocated.
  bool valid() const { return memory_ != nullptr; }

  size_t bytes() const { return bytes_; }

  // Null when all are lent.
  std::byte* Take() {
    if (free_.empty()) return nullptr;
    std::byte* slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void Give(std::byte* slot) {
    ANNULUS_CHECK(Owns(slot) && free_.size() < free_.capacity());
    free_.push_back(slot);
  }

  bool Owns(const std::byte* data) const { return data >= memory_.get() && data < memory_.get() + bytes_; }

 private:
  static constexpr size_t kAlignment = 64;
  static size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  size_t stride_;
  size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<std::byte*> free_;
};

}  // namespace annulus
