// Resolution of names where memory runs out.
#include <gtest/gtest.h>

#include <vector>

#include "tests/transport/allocation_counter.h"
#include "transport/stream_socket.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;

TEST(AddressMemoryTest, ALookUpWithoutMemoryIsAnError) {
  std::vector<StreamEndpoint> endpoints;
  ExhaustOthers(1);
  const Status status = Resolve("localhost:29500", DeadlineAfter(kPatience), &endpoints);
  EXPECT_TRUE(StopExhausting());
  EXPECT_EQ(status.code(), Code::kOutOfMemory);
  EXPECT_NE(status.message().find("\"localhost\""), std::string::npos) << status.message();
}

}  // namespace
}  // namespace annulus
