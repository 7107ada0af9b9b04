// ShmDistance: how far away the peer's processor is, and so how slots for it are best written.
//
// The probe costs two looks at the clock: the sender times the load that finds a returned slot. The peer wrote that
// word last, so the load has to fetch its line from the peer's cache. Measured on a virtual machine: 30-40 ns when both
// processors share a last-level cache, 140-160 ns when they do not (a look at the clock hides some of it), and 20 ns
// when the line happens to be here already. Distances change while a program runs: schedulers move threads, and
// hypervisors virtual processors.
//
// Near, plain stores into slots are best. Far, it takes longer to get back the lines that the peer has read than to
// write past the caches, where nothing has to come back: slots are then written by streaming stores.
//
// Threads: as the endpoint; streams() and nanoseconds() from any thread.
#pragma once

#include <array>
#include <atomic>

#include "base/clock.h"
#include "transport/transport.h"

namespace annulus {

class ShmDistance {
 public:
  // A distance between the two changes nothing.
  static constexpr Nanoseconds kNearBelow = 70;
  static constexpr Nanoseconds kFarAbove = 100;
  // Judged is the third longest of nine: two interruptions, or six lines that were here already, do not matter.
  static constexpr size_t kSamples = 9;
  static constexpr size_t kIgnored = 2;

  explicit ShmDistance(SlotStores stores) : stores_(stores) {}

  // Whether samples matter.
  bool probes() const { return stores_ == SlotStores::kAuto; }

  // `took`: of a load that found something new, with the looks at the clock. Returns whether streams() changed.
  bool Add(Nanoseconds took);

  bool streams() const { return stores_ == SlotStores::kStreaming || far_.load(std::memory_order_relaxed); }
  // What was judged last; 0 before that.
  Nanoseconds nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

 private:
  const SlotStores stores_;
  std::array<Nanoseconds, kSamples> samples_{};
  size_t taken_ = 0;  // Of samples_.
  std::atomic<bool> far_{false};
  std::atomic<Nanoseconds> nanoseconds_{0};
};

}  // namespace annulus
