// VerbsKept: the slices that were handed to the device whole and that the peer's process may not have, in order. Should
// the link go on over another one, they are sent again from here. A device that has acknowledged a slice may fail
// before its process has seen it, so only what the peer's process says counts.
//
// Small slices are copied. A slot stays in use until it is dropped here. Memory of an owner stays lent.
//
// There is room for as many as messages can be under way on all rails, and a sender waits while it is full. On one rail
// it never is, because a sender drops what it can before it adds (VerbsSender::Advance). What is first then has either
// not been taken by the peer, and neither has anything behind it; or its request is not completed, and those of the
// slices behind it came later. With several rails the latter may have taken another one.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "transport/transport.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {

struct VerbsKeptSlice {
  Tag tag;
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint32_t rail = 0;     // The rail that it took.
  uint32_t request = 0;  // Number of requests of the rail after which the device reads its data no more, modulo 2^32.
};

class VerbsKept {
 public:
  // `keeps`: false: nothing is ever kept.
  VerbsKept(int slots, size_t rails, bool keeps)
      : ring_(keeps ? rails * VerbsHeaders(slots) : 0), copies_(ring_.size() * kVerbsShortBytes) {}

  // 7,936 bytes with 8 slots and one rail.
  static size_t MemoryBytes(int slots, size_t rails) {
    return rails * VerbsHeaders(slots) * (sizeof(VerbsKeptSlice) + kVerbsShortBytes);
  }

  bool keeps() const { return !ring_.empty(); }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == ring_.size(); }
  uint32_t size() const { return size_; }

  void Add(const VerbsKeptSlice& slice) {
    ANNULUS_CHECK(size_ < ring_.size());
    const size_t place = (first_ + size_++) % ring_.size();
    ring_[place] = slice;
    if (slice.bytes > kVerbsShortBytes) return;
    std::byte* const copy = copies_.data() + place * kVerbsShortBytes;
    if (slice.bytes > 0) std::memcpy(copy, slice.data, slice.bytes);
    ring_[place].data = copy;
  }
  VerbsKeptSlice& at(uint32_t index) { return ring_[(first_ + index) % ring_.size()]; }
  const VerbsKeptSlice& at(uint32_t index) const { return ring_[(first_ + index) % ring_.size()]; }

  // Takes note that the request of one slice more has completed, of the first one that is not.
  void CompleteNext() {
    ANNULUS_CHECK(completed_ < size_);
    ++completed_;
  }
  // Slices whose requests have completed; they come first.
  uint32_t completed() const { return completed_; }

  // Forgets those whose requests have not completed.
  void DropUncompleted() { size_ = completed_; }
  // Drops the first slice, whose request has completed.
  void DropFirst() {
    ANNULUS_CHECK(completed_ > 0);
    first_ = static_cast<uint32_t>((first_ + 1) % ring_.size());
    --size_;
    --completed_;
  }

 private:
  std::vector<VerbsKeptSlice> ring_;
  std::vector<std::byte> copies_;  // By place in the ring.
  uint32_t first_ = 0;
  uint32_t size_ = 0;
  uint32_t completed_ = 0;
};

}  // namespace annulus
