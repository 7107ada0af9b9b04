// CopyRing: memory for copies that are given back in the order in which they were made. Each is contiguous, so the end
// of the ring may stay empty behind one that does not fit there.
//
// Positions count on for ever while anything is in use. The memory is not cleared, so that what is never used takes no
// room.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <memory>

#include "base/check.h"

namespace annulus {

class CopyRing {
 public:
  explicit CopyRing(size_t bytes) : bytes_(bytes), memory_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}

  size_t bytes() const { return bytes_; }
  // Bytes in use, with those that stay empty.
  size_t used() const { return end_ - begin_; }
  // One past the latest copy.
  size_t end() const { return end_; }

  bool Fits(size_t bytes) const { return used() + EmptyBefore(bytes) + bytes <= bytes_; }
  // Only what fits.
  std::byte* Add(size_t bytes) {
    ANNULUS_CHECK(Fits(bytes));
    const size_t empty = EmptyBefore(bytes);
    if (empty > 0) at_ = 0;
    end_ += empty + bytes;
    std::byte* const copy = memory_.get() + at_;
    at_ += bytes;
    if (at_ == bytes_) at_ = 0;
    return copy;
  }
  // Gives back all before that position.
  void FreeTo(size_t position) {
    begin_ = position;
    // From the beginning again, where the memory is most likely in the cache.
    if (begin_ == end_) begin_ = end_ = at_ = 0;
  }

 private:
  size_t EmptyBefore(size_t bytes) const {
    const size_t left = bytes_ - at_;
    return left < bytes ? left : 0;
  }

  const size_t bytes_;
  const std::unique_ptr<std::byte[]> memory_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t at_ = 0;  // Where the next copy goes, unless it does not fit there.
};

}  // namespace annulus
