// Virtual time: a queue of events ordered by time, then by age.
#include "transport/sim/sim_clock.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace annulus {

void SimClock::At(Nanoseconds time, std::function<void()> event) {
  events_.push({std::max(time, now_), next_order_++, std::move(event)});
}

bool SimClock::RunNext() {
  if (events_.empty()) return false;
  // top() is const only to keep the order intact, which moving the function out does not touch.
  std::function<void()> run = std::move(const_cast<Event&>(events_.top()).run);
  now_ = events_.top().time;
  events_.pop();
  run();
  return true;
}

int64_t SimClock::Between(int64_t low, int64_t high) {
  ANNULUS_CHECK(low <= high);
  // Not std::uniform_int_distribution, whose results differ between standard libraries; the bias does not matter here.
  return low + static_cast<int64_t>(random_() % (static_cast<uint64_t>(high - low) + 1));
}

}  // namespace annulus
