#include "transport/shm/shm_distance.h"

#include <algorithm>
#include <functional>

namespace annulus {

Nanoseconds ShmDistance::Batch::Judge(Nanoseconds took, size_t ignored) {
  samples[taken++] = took;
  if (taken < kSamples) return 0;
  taken = 0;
  const auto judged = samples.begin() + static_cast<ptrdiff_t>(ignored);
  std::nth_element(samples.begin(), judged, samples.end(), std::greater<>());
  return *judged;
}

bool ShmDistance::AddReturn(Nanoseconds took) {
  const Nanoseconds judged = returns_.Judge(took, kIgnored);
  if (judged == 0) return false;
  nanoseconds_.store(judged, std::memory_order_relaxed);
  if (judged < kNearBelow) {
    near_.store(true, std::memory_order_relaxed);
    asks_for_rewrite_ = false;
    rewrites_.taken = 0;
    return MoveTo(false);
  }
  if (judged > kNearUpTo) near_.store(false, std::memory_order_relaxed);
  if (judged <= kFarAbove) return false;
  if (asks_for_rewrite_) return false;
  if (patience_ > 0) {
    --patience_;
  } else {
    asks_for_rewrite_ = true;
  }
  return false;
}

bool ShmDistance::AddRewrite(Nanoseconds took) {
  const Nanoseconds judged = rewrites_.Judge(took, kSamples / 2);
  if (judged == 0) return false;
  asks_for_rewrite_ = false;
  patience_ = kPatience;
  return MoveTo(judged > kSlowRewrite);
}

bool ShmDistance::MoveTo(bool far) { return far_.exchange(far, std::memory_order_relaxed) != far; }

}  // namespace annulus
