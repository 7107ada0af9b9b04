#include "collectives/waiter.h"

#include <sched.h>

#include <algorithm>

namespace annulus {
namespace {

constexpr int kPollsPerLook = 16;  // A poll takes 20 ns (shared memory) to 500 ns (TCP); reading the clock 20-40 ns.

// Polling shortens a wait by the 25 us that waking up takes; beyond this that is little.
constexpr Nanoseconds kLongWait = 200 * kMicrosecond;
constexpr int kMostHalvings = 5;  // Leaves 1.5 us of spinning and 3 yields: enough for what is there already.

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Waiter::Next Waiter::Idle() {
  looked_ = idle_polls_ % kPollsPerLook == 0;
  if (looked_) {
    now_ = Now();
    if (idle_polls_ == 0) idle_since_ = now_;
  }
  ++idle_polls_;
  if (now_ - idle_since_ < policy_.spin >> halvings_) {
    Pause();
    return Next::kPollAgain;
  }
  if (yields_ < policy_.yields >> halvings_) {
    ++yields_;
    sched_yield();
    return Next::kPollAgain;
  }
  yields_ = 0;
  idle_polls_ = 0;
  looked_ = true;
  return Next::kSleep;
}

void Waiter::Slept(Nanoseconds now) {
  now_ = now;
  const bool is_long = now - idle_since_ > kLongWait;
  halvings_ = std::clamp(halvings_ + (is_long ? 1 : -1), 0, kMostHalvings);
}

WaitPolicy ChooseWaitPolicy(int local_size, int cores, int64_t spin_us) {
  WaitPolicy policy;
  if (spin_us >= 0) {
    policy.spin = spin_us * kMicrosecond;
  } else if (local_size > cores) {
    policy.spin = 0;
  }
  return policy;
}

}  // namespace annulus
