// Pulse: wakes a reactor periodically while it lives, for a caller that waits for something that no descriptor signals.
//
// Threads: the one that drives the reactor.
#pragma once

#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>

#include "base/clock.h"
#include "transport/reactor.h"

namespace annulus {

class Pulse {
 public:
  Pulse(Reactor* reactor, Nanoseconds period) : timer_(std::make_shared<asio::steady_timer>(reactor->context())) {
    Beat(timer_, period);
  }
  ~Pulse() { timer_->cancel(); }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

 private:
  using Timer = std::shared_ptr<asio::steady_timer>;
  static void Beat(const Timer& timer, Nanoseconds period) {
    timer->expires_after(std::chrono::nanoseconds(period));
    timer->async_wait([weak = std::weak_ptr<asio::steady_timer>(timer), period](const asio::error_code& cancelled) {
      const Timer alive = weak.lock();
      if (!cancelled && alive) Beat(alive, period);
    });
  }

  const Timer timer_;
};

}  // namespace annulus
