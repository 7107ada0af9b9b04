#include "transport/reactor.h"

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <system_error>

#include "transport/handler_memory.h"

namespace annulus {

struct Reactor::Context {
  HandlerMemory wake_memory;  // Of the thread that has set is_woken, until the handler clears it.
  HandlerMemory timer_memory;
  std::atomic<bool> is_woken{false};  // A handler that ends a wait is in the context.
  asio::io_context context;
  // Without it, a context in which nothing is pending would stop.
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  std::optional<asio::steady_timer> timer;  // Ends short waits; made with the first one.

  // Ends a wait after that time. Returns false where the process has no descriptor or memory left for that.
  bool StartTimer(Nanoseconds wait) {
    try {
      if (!timer) timer.emplace(context);
      timer->expires_after(std::chrono::nanoseconds(wait));
      timer->async_wait(timer_memory.Keep([](const asio::error_code&) {}));
    } catch (const std::system_error&) {
      return false;
    } catch (const std::bad_alloc&) {
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
  const bool is_timed = wait > 0 && wait < kShortWait && context_->StartTimer(wait);
  context().run_one_for(std::chrono::nanoseconds(wait));
  if (is_timed) context_->timer->cancel();
  for (int handlers = 1; handlers < kMostHandlers && context().poll_one() > 0; ++handlers) {
  }
}

// One handler at most waits, so wake-ups do not pile up while nobody sleeps.
void Reactor::Wake() noexcept {
  if (context_->is_woken.exchange(true, std::memory_order_acq_rel)) return;
  const auto handler = [woken = &context_->is_woken] { woken->exchange(false, std::memory_order_acq_rel); };
  asio::post(context(), context_->wake_memory.Keep(handler));
}

}  // namespace annulus
