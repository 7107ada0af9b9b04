// InterruptFilter: tells how often the user has asked for the end of the job, as one request may arrive as several
// signals.
//
// A signal to annulus-run reaches the supervisor through the guardian. A signal to the process group (kill %1,
// timeout(1), a shell that hangs up) or to all processes of a service reaches the supervisor directly as well, and some
// senders signal the process and then its group. Were each a request of its own, the second would kill ranks that are
// just saving their state.
//
// Threads: one.
#pragma once

#include "base/clock.h"

namespace annulus {

class InterruptFilter {
 public:
  // How long signals of any kind belong to the request that the first of them made. A user takes longer to ask twice.
  static constexpr Nanoseconds kBurstTime = 200 * kMillisecond;
  // How long the same signal may take on its other way: the guardian may have to wait for a processor.
  static constexpr Nanoseconds kOtherWayTime = 1 * kSecond;

  // How a signal came: from another process, through the guardian, or by a key of the terminal, which no guardian
  // forwards.
  enum class Way { kDirect, kForwarded, kTerminal };

  // Whether `signal`, which has arrived at time `now`, is a new request.
  bool IsNew(int signal, Way way, Nanoseconds now) {
    const bool forwarded = way == Way::kForwarded;
    bool& seen = forwarded ? forwarded_ : direct_;
    const bool other_way = signal == signal_ && way != Way::kTerminal && !seen && now < began_ + kOtherWayTime;
    if (signal_ != 0 && (other_way || now < began_ + kBurstTime)) {
      // Sent to the process first, and then to the group: the guardian will forward it once more.
      if (signal == signal_ && way == Way::kDirect && !direct_) forwarded_ = false;
      seen = seen || signal == signal_;
      return false;
    }
    signal_ = signal;
    began_ = now;
    direct_ = !forwarded;
    forwarded_ = forwarded;
    return true;
  }

 private:
  // The latest request: its first signal, when that came, and the ways on which that signal has come since. 0: none
  // yet.
  int signal_ = 0;
  Nanoseconds began_ = 0;
  bool direct_ = false;
  bool forwarded_ = false;
};

}  // namespace annulus
