// Alarm: wakes the reactor up after a moment, for what raises no event.
//
// Threads: those of the endpoint. Nothing allocates once it was first used.
#pragma once

#include <asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "transport/handler_memory.h"

namespace annulus {

class Alarm {
 public:
  using Executor = asio::steady_timer::executor_type;

  explicit Alarm(Executor executor) : timer_(std::move(executor)), armed_(std::make_shared<Armed>()) {}

  bool is_set() const { return armed_->waits; }
  // Asks for a wake-up after `delay`, unless one is due already.
  void Set(Nanoseconds delay) {
    if (std::exchange(armed_->waits, true)) return;
    timer_.expires_after(std::chrono::nanoseconds(delay));
    timer_.async_wait(armed_->handler.Keep([armed = armed_](const asio::error_code&) { armed->waits = false; }));
  }

 private:
  // Shared with the handler, which may outlive the alarm.
  struct Armed {
    bool waits = false;
    HandlerMemory handler;
  };

  asio::steady_timer timer_;
  const std::shared_ptr<Armed> armed_;
};

}  // namespace annulus
