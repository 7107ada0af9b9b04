// VerbsSlots: the slots that a sender lends, each with room for its header before it.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/rail/verbs_format.h"

namespace annulus {

class VerbsSlots {
 public:
  VerbsSlots(int slots, size_t slot_bytes, std::byte* memory)
      : bytes_(slot_bytes),
        stride_(VerbsSlotStride(slot_bytes)),
        memory_(memory),
        lent_(static_cast<size_t>(slots), false) {
    for (int i = slots; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
  }

  size_t bytes() const { return bytes_; }
  size_t count() const { return lent_.size(); }
  bool any_free() const { return !free_.empty(); }

  // Null when all are in use.
  std::byte* Lend() {
    if (free_.empty()) return nullptr;
    const uint32_t slot = free_.back();
    free_.pop_back();
    lent_[slot] = true;
    return At(slot);
  }
  // Reclaims a lent slot for sending. Returns false when `data` is none.
  bool Reclaim(const std::byte* data) {
    if (!Has(data)) return false;
    const size_t slot = IndexOf(data);
    if (data != At(slot) || !lent_[slot]) return false;
    lent_[slot] = false;
    return true;
  }
  // Whether `data` is in one of the slots.
  bool Has(const std::byte* data) const { return data >= At(0) && data < At(lent_.size()); }
  // The slot has been sent.
  void Free(const std::byte* data) { free_.push_back(static_cast<uint32_t>(IndexOf(data))); }

  // Where the header of a slot lies.
  static std::byte* HeaderOf(const std::byte* data) { return const_cast<std::byte*>(data) - kVerbsHeaderBytes; }

 private:
  std::byte* At(size_t index) const { return memory_ + index * stride_ + kVerbsHeaderBytes; }
  size_t IndexOf(const std::byte* data) const { return static_cast<size_t>(data - At(0)) / stride_; }

  const size_t bytes_;
  const size_t stride_;
  std::byte* const memory_;
  std::vector<uint32_t> free_;
  std::vector<bool> lent_;  // By slot: lent, not posted.
};

}  // namespace annulus
