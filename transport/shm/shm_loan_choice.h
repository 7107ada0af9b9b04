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

// How long copies of one kind take: the least of the latest ones, since whatever disturbs a copy makes it longer, and
// one kind is measured more often than the other.
class ShmPace {
 public:
  // Smallest copy that says something about large ones, in bytes.
  static constexpr size_t kLeastTimed = 16 * 1024;
  static constexpr size_t kSamples = 5;
  // Slices through slots that are not timed after a loan: a link has so many slots, which are out of the caches then,
  // or were never written before.
  static constexpr uint32_t kColdSlots = 8;

  void Add(size_t bytes, Nanoseconds took) {
    constexpr Nanoseconds kMost = UINT32_MAX;
    const Nanoseconds pace = took * static_cast<Nanoseconds>(kPer) / static_cast<Nanoseconds>(bytes);
    samples_[taken_++ % kSamples] = static_cast<uint32_t>(std::clamp<Nanoseconds>(pace, 1, kMost));
    if (taken_ < kSamples) return;
    value_ = *std::ranges::min_element(samples_);
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
    if (is_decided_) return lends_;
    is_decided_ = true;
    lends_ = Decide(paces);
    slots_in_row_ = lends_ ? 0 : slots_in_row_ + 1;
    return lends_;
  }
  // Also for slices about which nobody has asked, which count only if they may be lent.
  void Sent(bool may_be_lent) {
    const bool counts = may_be_lent || is_decided_;
    is_decided_ = false;
    if (!counts || ++turn_ < period_) return;
    turn_ = 0;
    period_ = std::min(2 * period_, kLongestPeriod);
  }
  // Whether it is worth while to ask about the next slice, where asking takes a longer way.
  bool MayLend() const { return prefers_loans_ || turn_ < kOthers; }
  // Whether the next slice goes through a slot though it could be lent, and the slot is warm.
  bool fills_warm_slot() const { return is_decided_ && slots_in_row_ > ShmPace::kColdSlots; }

 private:
  // Of so many slices, some in a row go the other way, so that its pace stays known: 1.6 percent. At first it is tried
  // more often: what a process measures when it begins may mislead.
  static constexpr uint32_t kOthers = 2 * ShmPace::kColdSlots;
  static constexpr uint32_t kFirstPeriod = 64;
  static constexpr uint32_t kLongestPeriod = 1024;

  bool Decide(const Paces& paces) {
    if (paces.fill == 0 || paces.read == 0 || paces.loan == 0) return turn_ / kOthers % 2 == 0;
    prefers_loans_ = uint64_t{paces.fill} + paces.read > paces.loan;
    return turn_ < kOthers ? !prefers_loans_ : prefers_loans_;
  }

  uint32_t turn_ = 0;  // Within the period.
  uint32_t slots_in_row_ = 0;
  uint32_t period_ = kFirstPeriod;
  bool prefers_loans_ = true;
  bool is_decided_ = false;
  bool lends_ = false;
};

}  // namespace annulus
