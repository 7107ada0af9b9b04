// ShmDistance: how far away the peer's processor is, and therefore how slots for it are best written.
//
// For a near peer, plain stores into slots are best. For a far peer, fetching back the lines that the peer has read
// takes longer than writing past the caches, where nothing has to come back. Slots are then written by streaming
// stores.
//
// Two probes decide. The first one costs two clock readings: the sender times the load that finds a returned slot. The
// peer wrote that word last, so the load has to fetch its line from the peer's cache. The load also takes long where
// lines travel far but many travel at once, so that a slot still comes back fast enough. The second probe detects this
// case and is used only when the first asks for it: the sender times writing to each line of the first kilobytes of a
// slot that the peer has read. Measured, in nanoseconds, on virtual machines with two cores:
//
//                                          a returned word   4 KiB of a slot
//   AMD EPYC, one last-level cache              30-40               450       plain stores are up to twice as fast
//   AMD EPYC, two last-level caches            140-160           1300-1800    streaming stores are twice as fast
//   Intel Xeon, one mesh                       100-130            350-900     plain stores are a third faster
//
// The slot times of the EPYC are derived from the rate at which whole slots were rewritten (8.9 and 2.3-3.1 GB/s). A
// load of a line that happens to be in the local cache already takes 20 ns. Distances change while a program runs:
// schedulers move threads, and hypervisors move virtual processors.
//
// Threads: as the endpoint; streams() and nanoseconds() may be called from any thread.
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
  // Load time of a returned word below which the peer is near, in nanoseconds.
  static constexpr Nanoseconds kNearBelow = 70;
  // Load time up to which a peer that was near still is, in nanoseconds.
  static constexpr Nanoseconds kNearUpTo = 85;
  // Load time above which the peer may be far, in nanoseconds. A time between that and kNearBelow changes no stores.
  static constexpr Nanoseconds kFarAbove = 100;
  // Number of bytes of a slot that the second probe rewrites.
  static constexpr size_t kRewriteBytes = 4096;
  // Rewrite time above which the peer is far, in nanoseconds.
  static constexpr Nanoseconds kSlowRewrite = 1100;
  static constexpr size_t kSamples = 9;
  // The third-longest of the last nine load times decides, so two interruptions, or six lines that were in the local
  // cache already, do not matter. For slots, the median rewrite time decides.
  static constexpr size_t kIgnored = 2;
  // Number of times, after a slot probe, that long load times are ignored before slots are probed again.
  static constexpr int kPatience = 16;

  explicit ShmDistance(SlotStores stores) : stores_(stores) {}

  // Whether samples affect the result.
  bool probes() const { return stores_ == SlotStores::kAuto; }

  // `took`: the time of a load that found a returned word, including the clock readings. Returns whether streams()
  // changed. These are judged also while a rewrite is asked for: who lends memory fills no slots, so the answer may
  // never come. A peer that is found near needs none.
  bool AddReturn(Nanoseconds took);

  // Whether the next slot should be timed.
  bool asks_for_rewrite() const { return asks_for_rewrite_; }
  // `took`: the time to rewrite kRewriteBytes that the peer has read. Returns whether streams() changed.
  bool AddRewrite(Nanoseconds took);

  bool streams() const { return stores_ == SlotStores::kStreaming || far_.load(std::memory_order_relaxed); }
  // Whether the peer is known to be near. Then a copy into a slot and out of it, both through a cache that the two
  // share, takes half the time of one by the kernel.
  bool is_near() const { return near_.load(std::memory_order_relaxed); }
  // The load time of a word by the latest decision, in nanoseconds; 0 before the first decision.
  Nanoseconds nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }

 private:
  // Samples that are judged together.
  struct Batch {
    // Adds a sample. Once there are kSamples, returns the longest one after leaving out the `ignored` longest; else 0.
    Nanoseconds Judge(Nanoseconds took, size_t ignored);

    std::array<Nanoseconds, kSamples> samples{};
    size_t taken = 0;  // Number of samples.
  };

  bool MoveTo(bool far);

  const SlotStores stores_;
  Batch returns_;   // Load times of words.
  Batch rewrites_;  // Rewrite times of slots.
  bool asks_for_rewrite_ = false;
  int patience_ = 0;
  std::atomic<bool> far_{false};
  std::atomic<bool> near_{false};
  std::atomic<Nanoseconds> nanoseconds_{0};
};

}  // namespace annulus
