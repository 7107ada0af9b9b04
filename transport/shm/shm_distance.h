// ShmDistance: how far away the peer's processor is, and so how slots for it are best written.
//
// Near, plain stores into slots are best. Far, it takes longer to get back the lines that the peer has read than to
// write past the caches, where nothing has to come back: slots are then written by streaming stores.
//
// Two probes tell. The first costs two looks at the clock: the sender times the load that finds a returned slot. The
// peer wrote that word last, so the load has to fetch its line from the peer's cache. It also takes long where lines do
// travel far but many do so at once, so that a slot comes back fast enough; the second probe finds that out, and is
// used only when the first asks for it: the sender times writing to each line of the first kilobytes of a slot that the
// peer has read. Measured, in nanoseconds, on virtual machines with two cores:
//
//                                          a returned word   4 KiB of a slot
//   AMD EPYC, one last-level cache              30-40               450       plain stores are up to twice as fast
//   AMD EPYC, two of them                      140-160           1300-1800    streaming ones are twice as fast
//   Intel Xeon, one mesh                       100-130            350-900     plain ones are a third faster
//
// where the EPYC's slots are by the rate at which whole slots were rewritten (8.9 and 2.3-3.1 GB/s). A line that
// happens to be here already takes 20 ns. Distances change while a program runs: schedulers move threads, and
// hypervisors virtual processors.
//
// Threads: as the endpoint; streams() and nanoseconds() from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transport/shm/shm_settings.h"

namespace annulus {

class ShmDistance {
 public:
  // Of a returned word. A distance between the two changes nothing.
  static constexpr Nanoseconds kNearBelow = 70;
  static constexpr Nanoseconds kFarAbove = 100;
  // Of kRewriteBytes of a slot; above it a peer is far.
  static constexpr size_t kRewriteBytes = 4096;
  static constexpr Nanoseconds kSlowRewrite = 1100;
  static constexpr size_t kSamples = 9;
  // Of words judged is the third longest: two interruptions, or six lines that were here already, do not matter. Of
  // slots it is the median.
  static constexpr size_t kIgnored = 2;
  // Times that words say far and are not looked into again, after slots were.
  static constexpr int kPatience = 16;

  explicit ShmDistance(SlotStores stores) : stores_(stores) {}

  // Whether samples matter.
  bool probes() const { return stores_ == SlotStores::kAuto; }

  // `took`: of a load that found a returned word, with the looks at the clock. Returns whether streams() changed.
  bool AddReturn(Nanoseconds took);

  // Whether a slot is to be timed, and its time, for kRewriteBytes that the peer has read. Returns whether streams()
  // changed.
  bool asks_for_rewrite() const { return asks_for_rewrite_; }
  bool AddRewrite(Nanoseconds took);

  bool streams() const { return stores_ == SlotStores::kStreaming || far_.load(std::memory_order_relaxed); }
  // The distance of a word as judged last; 0 before that.
  Nanoseconds nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

 private:
  // The `ignored`-th longest of the samples, once there are all; else 0.
  Nanoseconds Judge(Nanoseconds took, size_t ignored);
  bool MoveTo(bool far);

  const SlotStores stores_;
  std::array<Nanoseconds, kSamples> samples_{};
  size_t taken_ = 0;               // Of samples_.
  bool asks_for_rewrite_ = false;  // Samples are of slots, else of words.
  int patience_ = 0;
  std::atomic<bool> far_{false};
  std::atomic<Nanoseconds> nanoseconds_{0};
};

}  // namespace annulus
