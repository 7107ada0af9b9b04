#include "transport/reactor.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <system_error>

namespace annulus {

struct Reactor::Context {
  asio::io_context context;
  // Without it, a context in which nothing is pending would stop.
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  std::optional<asio::steady_timer> timer;  // Ends short waits; made with the first one.

  // Returns false where the process has no descriptor left for it.
  bool HasTimer() {
    try {
      if (!timer) timer.emplace(context);
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }
};

Reactor::Reactor() : context_(std::make_unique<Context>()) {}
Reactor::~Reactor() = default;

asio::io_context& Reactor::context() { return context_->context; }

void Reactor::WaitUntil(Deadline deadline) {
  constexpr Nanoseconds kLongestWait = 3600 * kSecond;  // Keeps kNoDeadline within the range of the clock.
  // Asio waits for whole milliseconds, rounded up. What is to be looked at every 20 us, as a stream, would be so every
  // millisecond.
  constexpr Nanoseconds kShortWait = 10 * kMillisecond;
  const Nanoseconds wait = std::clamp<Nanoseconds>(deadline - Now(), 0, kLongestWait);
  const bool is_timed = wait > 0 && wait < kShortWait && context_->HasTimer();
  std::optional<asio::steady_timer>& timer = context_->timer;
  if (is_timed) {
    timer->expires_after(std::chrono::nanoseconds(wait));
    timer->async_wait([](const asio::error_code&) {});
  }
  context().run_one_for(std::chrono::nanoseconds(wait));
  if (is_timed) timer->cancel();
  for (int handlers = 1; handlers < kMostHandlers && context().poll_one() > 0; ++handlers) {
  }
}

void Reactor::Wake() {
  asio::post(context(), [] {});
}

}  // namespace annulus
