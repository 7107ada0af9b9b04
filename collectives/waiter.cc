#include "collectives/waiter.h"

#include <sched.h>

namespace annulus {
namespace {

constexpr int kPollsPerLook = 16;  // A poll takes 20 ns (shared memory) to 500 ns (TCP); reading the clock 20-40 ns.

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
  if (now_ - idle_since_ < policy_.spin) {
    Pause();
    return Next::kPollAgain;
  }
  if (yields_ < policy_.yields) {
    ++yields_;
    sched_yield();
    return Next::kPollAgain;
  }
  yields_ = 0;
  idle_polls_ = 0;
  looked_ = true;
  return Next::kSleep;
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
