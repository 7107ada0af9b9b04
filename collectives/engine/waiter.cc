#include "collectives/engine/waiter.h"

#include <sched.h>

#include <algorithm>

namespace annulus {
namespace {

constexpr int kPollsPerLook = 16;  // A poll takes 20 ns (shared memory) to 500 ns (TCP); reading the clock 20-40 ns.

// Polling shortens a wait by the 25 us that waking up takes; for waits beyond this, that gains little.
constexpr Nanoseconds kLongWait = 200 * kMicrosecond;
constexpr int kMostHalvings = 5;  // Leaves 1.5 us of spinning and 3 yields: enough for data that has arrived.

// Where nobody else wants the core, yielding takes less than a microsecond.
constexpr Nanoseconds kLongYield = 10 * kMicrosecond;

// Long yields before the next sleep: few, since ranks on one core exchange a message in some 100 us, but more than
// other programs cause now and then, because a sleep costs more than a yield.
constexpr int kMostCrowded = 8;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Two ranks that the kernel has put on one core yield to each other without end, even if other cores are idle: tasks
// that run in turn count as too hot to be moved. One that sleeps is woken on an idle core.
void Waiter::Yield() {
  if (policy_.spin == 0) {  // Cores are shared on purpose.
    sched_yield();
    return;
  }
  const Nanoseconds before = Now();
  sched_yield();
  if (Now() - before > kLongYield) ++crowded_;
}

void Waiter::Look() {
  const Nanoseconds before = now_;
  now_ = Now();
  looked_ = has_looked_ = true;
  if (idle_polls_ == (policy_.spin > 0 ? kPollsPerLook : 1)) {  // The first look of this wait.
    idle_since_ = now_ - IdleTime();
  } else if (yields_ == 0) {
    poll_time_.Learn((now_ - before) / kPollsPerLook);
  }
}

Waiter::Next Waiter::Idle() {
  ++idle_polls_;
  looked_ = false;
  // Yielding may take long, so the clock is read before.
  if (idle_polls_ % kPollsPerLook == 0 || (policy_.spin == 0 && idle_polls_ == 1)) Look();
  if (policy_.spin > 0 && (idle_polls_ < kPollsPerLook || now_ - idle_since_ < policy_.spin >> halvings_)) {
    Pause();
    return Next::kPollAgain;
  }
  if (yields_ < policy_.yields >> halvings_ && crowded_ < kMostCrowded) {
    ++yields_;
    Yield();
    return Next::kPollAgain;
  }
  if (!looked_) Look();
  Reset();
  crowded_ = 0;
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
  // A rank that does not spin yields to the ranks it waits for. If none is on this host, it gives way to all by
  // sleeping.
  if (policy.spin == 0 && local_size == 1) policy.yields = 0;
  return policy;
}

}  // namespace annulus
