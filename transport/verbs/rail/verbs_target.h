// VerbsTarget: the peer's process as the sender sees it, whichever rails it sends over: where its slots are, which of
// them are free, and how many slices it has taken.
//
// Threads: as the endpoint.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_returns.h"

namespace annulus {

class VerbsTarget {
 public:
  // `fault` outlives it.
  VerbsTarget(int slots, size_t slot_bytes, VerbsFault* fault)
      : all_slots_(slots == 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1),
        stride_(VerbsSlotStride(slot_bytes)),
        fault_(fault) {}

  // `address`: that of the first slot's header.
  void Reach(uint64_t address) { address_ = address; }
  // Where a slot lies for its owner, `offset` bytes behind its header's begin.
  uint64_t AddressOf(uint32_t slot, size_t offset) const { return address_ + slot * stride_ + offset; }

  bool HasSlot() const { return (~used_ & all_slots_) != 0; }
  uint32_t ClaimSlot() {
    const auto slot = static_cast<uint32_t>(std::countr_zero(~used_ & all_slots_));
    used_ |= uint64_t{1} << slot;
    return slot;
  }

  // A slice has been handed over whole.
  void CountSlice() { ++sent_slices_; }
  // Slices that were; slices that the peer's process has taken whole. Both modulo 2^32.
  uint32_t sent_slices() const { return sent_slices_; }
  uint32_t taken_slices() const { return taken_slices_; }

  // The peer says how many slices it has taken.
  void OnTaken(uint32_t slices) {
    if (VerbsReached(taken_slices_, slices)) return;
    if (slices - taken_slices_ > sent_slices_ - taken_slices_) return fault_->Set("a count of taken slices", slices);
    taken_slices_ = slices;
  }
  // The peer's header says what it has taken and released. One that comes after a newer one says nothing new.
  void OnReturns(const VerbsHeader& header) {
    OnTaken(header.taken_slices);
    if (VerbsReached(releases_, header.releases)) return;
    const uint64_t changed = header.released ^ released_;
    if ((changed & ~used_) != 0) return fault_->Set("a released slot that it does not have", changed);
    used_ &= ~changed;
    released_ = header.released;
    releases_ = header.releases;
  }

 private:
  const uint64_t all_slots_;  // A bit for each, as in the other words.
  const size_t stride_;
  VerbsFault* const fault_;
  uint64_t address_ = 0;
  uint64_t used_ = 0;      // Slots that hold a slice.
  uint64_t released_ = 0;  // The newest VerbsHeader::released and releases.
  uint32_t releases_ = 0;
  uint32_t sent_slices_ = 0;
  uint32_t taken_slices_ = 0;
};

}  // namespace annulus
