#include "transport/reactor.h"

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>

namespace annulus {

void Reactor::WaitUntil(Deadline deadline) {
  constexpr Nanoseconds kLongestWait = 3600 * kSecond;  // Keeps kNoDeadline within the range of the clock.
  const Nanoseconds wait = std::clamp<Nanoseconds>(deadline - Now(), 0, kLongestWait);
  context_.run_one_for(std::chrono::nanoseconds(wait));
  for (int handlers = 1; handlers < kMostHandlers && context_.poll_one() > 0; ++handlers) {
  }
}

void Reactor::Wake() {
  asio::post(context_, [] {});
}

}  // namespace annulus
