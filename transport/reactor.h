// Reactor: where a rank that has nothing to do sleeps until a link, a deadline or another thread wakes it.
//
// Every transport of a communicator registers its file descriptors with the same reactor (Endpoint::Arm), so one
// wait covers all links.
//
// Threads: Wake() from any thread; everything else from the thread that drives the communicator.
#pragma once

#include <memory>

#include "base/clock.h"

namespace asio {
class io_context;
}  // namespace asio

namespace annulus {

class Reactor {
 public:
  Reactor();
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Who uses it includes asio/io_context.hpp.
  asio::io_context& context();

  // Most handlers that one call of WaitUntil runs, so that its caller can look at the time and at what was asked of it,
  // however fast new work arrives.
  static constexpr int kMostHandlers = 512;

  // Runs at least one handler, or returns at `deadline`. Then runs further handlers that are due, up to kMostHandlers.
  void WaitUntil(Deadline deadline);

  // Makes the current or the next WaitUntil return. Needs no memory. What was written before is seen after that wait.
  void Wake() noexcept;

 private:
  struct Context;  // Asio's.
  const std::unique_ptr<Context> context_;
};

}  // namespace annulus
