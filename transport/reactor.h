// Reactor: where a rank that has nothing to do sleeps until a link, a deadline or another thread wakes it.
//
// Every transport of a communicator registers its file descriptors with the same reactor (Endpoint::Arm), so one
// wait covers all links.
//
// Threads: Wake() from any thread; everything else from the thread that drives the communicator.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include "base/clock.h"

namespace annulus {

class Reactor {
 public:
  Reactor() : work_(asio::make_work_guard(context_)) {}
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  asio::io_context& context() { return context_; }

  // Most handlers that one call of WaitUntil runs, so that its caller can look at the time and at what was asked of it,
  // however fast new work arrives.
  static constexpr int kMostHandlers = 512;

  // Runs at least one handler, or returns at `deadline`. Then runs further handlers that are due, up to kMostHandlers.
  void WaitUntil(Deadline deadline);

  // Makes the current or the next WaitUntil return.
  void Wake();

 private:
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
};

}  // namespace annulus
