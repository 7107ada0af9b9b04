// Liveness: when one side of a pipe has to say that it is alive, and when it may take the other side for lost.
//
// Threads: one.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "launcher/remote/agent_pipe.h"

namespace annulus {

class Liveness {
 public:
  // With a timeout that holds until SetTimeout; nothing has to be said before then.
  explicit Liveness(Nanoseconds timeout) : timeout_(timeout), next_alive_(DeadlineAfter(timeout)) {}

  void SetTimeout(Nanoseconds timeout) {
    timeout_ = timeout;
    SaidAlive();
  }

  // Whether to say now that this side is alive; then call SaidAlive.
  bool due() const { return Now() >= next_alive_; }
  void SaidAlive() { next_alive_ = DeadlineAfter(timeout_ / kAlivesPerTimeout); }

  // When the other side, last heard of at that time, counts as lost.
  Deadline LostAt(Nanoseconds last_heard) const { return last_heard + timeout_; }

  // When due() or LostAt becomes true.
  Deadline next(Nanoseconds last_heard) const { return std::min(next_alive_, LostAt(last_heard)); }

 private:
  Nanoseconds timeout_;
  Deadline next_alive_;
};

}  // namespace annulus
