// Board: the current activity of one rank, in memory that it shares with annulus-run --watch.
//
// annulus-run creates a page with a board for each of its ranks, in a memfd that is sealed against shrinking, and
// passes its descriptor down: ANNULUS_WATCH=DESCRIPTOR:BOARD. The rank writes; no process waits for another, and each
// may end at any time.
//
// Threads: one writes at a time; any read. Every field is a separate atomic, stored relaxed: a reader may see one field
// newer than another, but never a torn field.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace annulus {

// A number that one thread at a time writes and any thread reads: a load and a store, no locked instruction.
class Counter {
 public:
  void Add(uint64_t amount) { Set(Get() + amount); }
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  std::atomic<uint64_t> value_{0};
};

struct alignas(64) Board {
  static constexpr uint64_t kNothing = 0;
  static constexpr uint64_t kCollective = 1;
  static constexpr uint64_t kMessages = 2;

  std::atomic<uint64_t> owner{0};  // Id of the process that writes it; 0: none.
  Counter rank;
  Counter nranks;
  // The next three describe the latest collective.
  Counter sequence;  // 0: none yet.
  Counter kind;      // CollectiveKind.
  Counter count;
  Counter inside;  // Current activity: one of the constants above.
  Counter failed;  // 1: the communicator has its verdict.
  // Times are those of the monotonic clock.
  Counter waiting_since;  // 0: not waiting.
  Counter waiting_for;    // The peer plus 1; 0: none in particular.
  Counter waited_ns;      // Total up to waiting_since.
  Counter moved_bytes;    // Slices sent and received, up to the last wait or the end of the last call.
};

struct BoardPage {
  static constexpr uint64_t kMagic = 0x414e4e424f415231;  // "ANNBOAR1"; a new layout gets a new value.
  uint64_t magic = kMagic;
  uint64_t board_bytes = sizeof(Board);
  uint64_t boards = 0;
};
static_assert(sizeof(BoardPage) <= sizeof(Board));

// The head occupies the first place; the boards follow it.
constexpr size_t BoardPageBytes(int boards) { return (static_cast<size_t>(boards) + 1) * sizeof(Board); }

}  // namespace annulus
