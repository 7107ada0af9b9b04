// HandshakeOutput, HandshakeInput: the bytes of a handshake that are to be sent, and those of the message that is
// expected. Both have a fixed size, so that a peer cannot make them grow.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/check.h"

namespace annulus {

template <size_t kBytes>
class HandshakeOutput {
 public:
  void Add(std::span<const std::byte> bytes) {
    ANNULUS_CHECK(end_ + bytes.size() <= bytes_.size());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + end_);
    end_ += bytes.size();
  }

  bool empty() const { return begin_ == end_; }
  std::span<const std::byte> unsent() const { return std::span(bytes_).subspan(begin_, end_ - begin_); }
  void Sent(size_t bytes) {
    ANNULUS_CHECK(bytes <= end_ - begin_);
    begin_ += bytes;
    if (begin_ == end_) begin_ = end_ = 0;
  }

 private:
  std::array<std::byte, kBytes> bytes_{};
  size_t begin_ = 0;
  size_t end_ = 0;
};

template <size_t kBytes>
class HandshakeInput {
 public:
  explicit HandshakeInput(size_t wanted) : wanted_(wanted) {}

  // Makes the message, including what has arrived of it, `bytes` long.
  void Extend(size_t bytes) { wanted_ = bytes; }
  // Begins a message of that length. 0: nothing more is expected.
  void Begin(size_t bytes) {
    filled_ = 0;
    wanted_ = bytes;
  }

  // Number of bytes that are missing.
  size_t missing() const { return wanted_ - filled_; }
  void Add(std::span<const std::byte> bytes) {
    ANNULUS_CHECK(bytes.size() <= missing());
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + filled_);
    filled_ += bytes.size();
  }

  const std::array<std::byte, kBytes>& bytes() const { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
  size_t filled_ = 0;
  size_t wanted_;
};

}  // namespace annulus
