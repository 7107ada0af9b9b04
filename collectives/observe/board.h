// Board: what one rank is doing, in memory that it shares with annulus-run --watch.
//
// annulus-run makes a page with a board for each of its ranks, in a memfd that is sealed against shrinking, and hands
// its descriptor down: ANNULUS_WATCH=DESCRIPTOR:BOARD. The rank writes; nobody waits for anybody, and either may end at
// any time.
//
// Threads: one writes at a time; any read. Every field is an atomic of its own, stored relaxed: a reader may see one
// newer than another, never a torn one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace annulus {

// A number that one thread writes at a time and any reads: a load and a store, no locked instruction.
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

  std::atomic<uint64_t> owner{0};  // The process that writes it; 0: nobody.
  Counter rank;
  Counter nranks;
  // The latest collective.
  Counter sequence;  // 0: none yet.
  Counter kind;      // CollectiveKind.
  Counter count;
  Counter inside;  // What goes on now: one of these.
  Counter failed;  // 1: the communicator has its verdict.
  // Times are of the monotonic clock.
  Counter waiting_since;  // 0: it does not wait.
  Counter waiting_for;    // The peer, plus 1; 0: for none in particular.
  Counter waited_ns;      // Up to waiting_since.
  Counter moved_bytes;    // Slices sent and received, as of the last wait or the last call's end.
};

struct BoardPage {
  static constexpr uint64_t kMagic = 0x414e4e424f415231;  // "ANNBOAR1"; a new layout gets a new one.
  uint64_t magic = kMagic;
  uint64_t board_bytes = sizeof(Board);
  uint64_t boards = 0;
};
static_assert(sizeof(BoardPage) <= sizeof(Board));

// The page's first board's place takes the head.
constexpr size_t BoardPageBytes(int boards) { return (static_cast<size_t>(boards) + 1) * sizeof(Board); }

}  // namespace annulus
