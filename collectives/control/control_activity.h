// ActivityRecorder: records what a rank is doing. It is written around every collective, and read by the control thread
// when the arbiter asks.
//
// A sequence lock made only of atomics: the writer never waits and takes no lock; a reader that meets a writer retries.
// Memory order: fields are stored with release and loaded with acquire, so a reader that sees any field of a newer
// write also sees the odd version that preceded it, and retries. (There are no fences because thread sanitizer does not
// support them.)
//
// Threads: Enter and Leave from one thread at a time; Read from any.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "collectives/core/collective.h"

namespace annulus {

// Latest activity of a rank, as it reports to the arbiter.
struct Activity {
  uint64_t sequence = 0;     // Latest call that the rank entered; 0 before the first.
  bool inside = false;       // The rank has not finished that call.
  std::vector<Call> recent;  // The latest calls, the newest first; recent[0].sequence == sequence when not empty.
  bool operator==(const Activity&) const = default;
};

class ActivityRecorder {
 public:
  // Number of calls remembered. A root may be several broadcasts ahead of its receivers.
  static constexpr int kRemembered = 8;

  void Enter(const Call& call) {
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    Slot& slot = slots_[call.sequence % kRemembered];
    slot.sequence.store(call.sequence, std::memory_order_release);
    slot.shape.store(Shape(call), std::memory_order_release);
    slot.count.store(call.count, std::memory_order_release);
    position_.store(call.sequence << 1 | 1, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  void Leave() { position_.store(position_.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_release); }

  Activity Read() const {
    // A writer is between its two version stores for nanoseconds, unless it was preempted just there.
    constexpr int kMostTries = 1000;
    Activity activity;
    for (int i = 0; i < kMostTries; ++i) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      if (before % 2 == 0) {
        activity = ReadOnce();
        if (version_.load(std::memory_order_relaxed) == before) return activity;
      }
      ::sched_yield();
    }
    activity.recent.clear();  // These may be torn; the position never is.
    return activity;
  }

 private:
  struct Slot {
    std::atomic<uint64_t> sequence{0};
    std::atomic<uint64_t> shape{0};
    std::atomic<uint64_t> count{0};
  };

  static uint64_t Shape(const Call& call) {
    return uint64_t{static_cast<uint8_t>(call.kind)} | uint64_t{static_cast<uint8_t>(call.type)} << 8 |
           uint64_t{static_cast<uint8_t>(call.op)} << 16 | uint64_t{static_cast<uint32_t>(call.root)} << 32;
  }

  Activity ReadOnce() const {
    Activity activity;
    const uint64_t position = position_.load(std::memory_order_acquire);
    activity.sequence = position >> 1;
    activity.inside = position & 1;
    for (uint64_t back = 0; back < kRemembered && back < activity.sequence; ++back) {
      const Slot& slot = slots_[(activity.sequence - back) % kRemembered];
      Call call;
      call.sequence = slot.sequence.load(std::memory_order_acquire);
      if (call.sequence != activity.sequence - back) break;
      const uint64_t shape = slot.shape.load(std::memory_order_acquire);
      call.kind = static_cast<CollectiveKind>(shape & 0xff);
      call.type = static_cast<DataType>(shape >> 8 & 0xff);
      call.op = static_cast<ReduceOp>(shape >> 16 & 0xff);
      call.root = static_cast<int32_t>(shape >> 32);
      call.count = slot.count.load(std::memory_order_acquire);
      activity.recent.push_back(call);
    }
    return activity;
  }

  std::atomic<uint64_t> version_{0};   // Odd while Enter writes.
  std::atomic<uint64_t> position_{0};  // Sequence of the latest call, shifted; lowest bit: inside it.
  std::array<Slot, kRemembered> slots_;
};

}  // namespace annulus
