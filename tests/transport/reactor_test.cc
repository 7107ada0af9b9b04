// The reactor's bound on work: whoever drives it gets to look at the time, however much there is to do.
#include "transport/reactor.h"

#include <gtest/gtest.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <functional>

namespace annulus {
namespace {

TEST(ReactorTest, ReturnsAlthoughASourceIsAlwaysReady) {
  Reactor reactor;
  int handled = 0;
  std::function<void()> again = [&] {
    ++handled;
    asio::post(reactor.context(), again);
  };
  again();
  reactor.WaitUntil(kNoDeadline);
  EXPECT_GT(handled, 1);
  EXPECT_LE(handled, Reactor::kMostHandlers + 1);
  reactor.WaitUntil(Now());
  EXPECT_LE(handled, 2 * Reactor::kMostHandlers + 1);
}

TEST(ReactorTest, RunsAllThatIsDueWithinTheBound) {
  Reactor reactor;
  int handled = 0;
  for (int i = 0; i < Reactor::kMostHandlers; ++i) asio::post(reactor.context(), [&] { ++handled; });
  reactor.WaitUntil(kNoDeadline);
  EXPECT_EQ(handled, Reactor::kMostHandlers);
}

}  // namespace
}  // namespace annulus
