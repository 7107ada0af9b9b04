// ShmLoanChoice: whether a slice of a message is lent, so that the kernel copies it once, or goes through a slot, into
// which it is copied and out of which it is copied again. Which is faster depends on the processors, on the kernel and
// on what lies in their caches, so both are timed: the sender times filling slots, the receiver reading them and
// reading loans (decision 105).
//
// Threads: as the endpoint.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace annulus {

// How long copies of one kind take: the median of the latest ones.
class ShmPace {
 public:
  // Smallest copy that says something about large ones, in bytes.
  static constexpr size_t kLeastTimed = 16 * 1024;
  static constexpr size_t kSamples = 5;

  void Add(size_t bytes, Nanoseconds took) {
    constexpr Nanoseconds kMost = UINT32_MAX;
    const Nanoseconds pace = took * static_cast<Nanoseconds>(kPer) / static_cast<Nanoseconds>(bytes);
    samples_[taken_++ % kSamples] = static_cast<uint32_t>(std::clamp<Nanoseconds>(pace, 1, kMost));
    if (taken_ < kSamples) return;
    std::array<uint32_t, kSamples> sorted = samples_;
    std::ranges::nth_element(sorted, sorted.begin() + kSamples / 2);
    value_ = sorted[kSamples / 2];
  }
  // Nanoseconds for 64 KiB; 0: not known yet.
  uint32_t value() const { return value_; }

 private:
  static constexpr size_t kPer = 64 * 1024;

  std::array<uint32_t, kSamples> samples_{};
  size_t taken_ = 0;
  uint32_t value_ = 0;
};

class ShmLoanChoice {
 public:
  // As ShmPace::value. Of the other end's, what it says, which decides about nothing but speed.
  struct Paces {
    uint32_t fill = 0;
    uint32_t read = 0;
    uint32_t loan = 0;
  };

  // For the slice that is sent next: the same answer until Sent().
  bool Lends(const Paces& paces) {
    if (!is_decided_) lends_ = Decide(paces);
    is_decided_ = true;
    return lends_;
  }
  void Sent() { is_decided_ = false; }
  // Whether the next slice goes through a slot though it could be lent.
  bool fills_slot() const { return is_decided_ && !lends_; }

 private:
  // Of so many slices, some in a row go the other way, so that its pace stays known: twice as many as a link has slots,
  // since the first ones find these out of the caches, or never written before. Where that way takes twice as long, it
  // costs 1.6 percent.
  static constexpr uint32_t kPeriod = 1024;
  static constexpr uint32_t kOthers = 16;

  bool Decide(const Paces& paces) {
    const uint32_t turn = decisions_++;
    if (paces.fill == 0 || paces.read == 0 || paces.loan == 0) return turn / kOthers % 2 == 0;
    // A loan takes some handshakes besides, and the two copies of what has several slices go side by side.
    const bool lends = 4 * (uint64_t{paces.fill} + paces.read) > 5 * uint64_t{paces.loan};
    return turn % kPeriod < kOthers ? !lends : lends;
  }

  uint32_t decisions_ = 0;
  bool is_decided_ = false;
  bool lends_ = false;
};

}  // namespace annulus
