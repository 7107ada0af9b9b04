// SimClock: virtual time and seeded randomness. Events run one at a time, in the order of their times.
//
// The same seed and the same calls give the same run.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "base/clock.h"

namespace annulus {

class SimClock {
 public:
  explicit SimClock(uint64_t seed) : random_(seed) {}
  SimClock(const SimClock&) = delete;
  SimClock& operator=(const SimClock&) = delete;

  Nanoseconds now() const { return now_; }

  // Runs `event` at virtual time `time`, or next when that has passed. Events of equal time run in the order of the
  // calls.
  void At(Nanoseconds time, std::function<void()> event);

  // Advances to the next event and runs it. Returns false when there is none.
  bool RunNext();

  // A random number in [low, high].
  int64_t Between(int64_t low, int64_t high);
  bool Chance(int percent) { return Between(1, 100) <= percent; }

 private:
  struct Event {
    Nanoseconds time;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
  };

  std::priority_queue<Event> events_;
  std::mt19937_64 random_;
  Nanoseconds now_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace annulus
