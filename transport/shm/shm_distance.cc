#include "transport/shm/shm_distance.h"

#include <algorithm>
#include <functional>

namespace annulus {

bool ShmDistance::Add(Nanoseconds took) {
  samples_[taken_++] = took;
  if (taken_ < kSamples) return false;
  taken_ = 0;
  const auto judged = samples_.begin() + kIgnored;
  std::nth_element(samples_.begin(), judged, samples_.end(), std::greater<>());
  nanoseconds_.store(*judged, std::memory_order_relaxed);
  const bool was_far = far_.load(std::memory_order_relaxed);
  const bool is_far = was_far ? *judged >= kNearBelow : *judged > kFarAbove;
  far_.store(is_far, std::memory_order_relaxed);
  return is_far != was_far;
}

}  // namespace annulus
