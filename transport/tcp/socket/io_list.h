// IoList: the pieces of memory that one system call reads or writes, in order.
//
// Threads: a value.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>

#include "base/check.h"

namespace annulus {

class IoList {
 public:
  // Largest number of pieces: two, header and payload, for each of the frames that one write may carry.
  static constexpr int kMost = 64;

  void Add(const std::byte* data, size_t bytes) {
    ANNULUS_CHECK(count_ < kMost);
    pieces_[count_++] = {const_cast<std::byte*>(data), bytes};
    bytes_ += bytes;
  }

  iovec* pieces() { return pieces_.data(); }
  int count() const { return count_; }
  // The sum over all pieces.
  size_t bytes() const { return bytes_; }

 private:
  std::array<iovec, kMost> pieces_;
  int count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace annulus
