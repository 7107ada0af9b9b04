// Tests of addresses: text, resolution and listening.
#include "transport/address.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;

TEST(AddressTest, TextAndEndpointsCorrespond) {
  for (const std::string text : {"10.0.0.2:41234", "[::1]:1", "[fe80::1]:65535"}) {
    StreamEndpoint endpoint;
    ASSERT_TRUE(ParseEndpoint(text, &endpoint).ok()) << text;
    EXPECT_EQ(EndpointText(endpoint), text);
  }
  StreamEndpoint endpoint;
  for (const std::string text :
       {"", "10.0.0.2", "host:1", "::1:5", "10.0.0.2:0", "10.0.0.2:65536", "[::1]", "1.2.3.4.5:6"}) {
    EXPECT_EQ(ParseEndpoint(text, &endpoint).code(), Code::kInvalidArgument) << text;
  }
  EXPECT_FALSE(HasAddress(endpoint));
}

TEST(AddressTest, LocalhostResolvesToALoopbackAddress) {
  Reactor reactor;
  std::vector<StreamEndpoint> endpoints;
  ASSERT_TRUE(Resolve(&reactor, "localhost:29500", DeadlineAfter(kPatience), &endpoints).ok());
  ASSERT_FALSE(endpoints.empty());
  EXPECT_TRUE(IsLoopback(endpoints[0]));
  ASSERT_TRUE(Resolve(&reactor, "[::1]:29500", DeadlineAfter(kPatience), &endpoints).ok());
  EXPECT_EQ(EndpointText(endpoints[0]), "[::1]:29500");
  EXPECT_EQ(Resolve(&reactor, "no port", DeadlineAfter(kPatience), &endpoints).code(), Code::kInvalidArgument);
}

TEST(AddressTest, APortInUseIsAnErrorThatSaysSo) {
  Reactor reactor;
  StreamEndpoint any;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 0, &any).ok());
  StreamListener first(reactor.context());
  ASSERT_TRUE(Listen(&reactor, any, nullptr, &first).ok());
  const StreamEndpoint at = first.local_endpoint();
  StreamListener second(reactor.context());
  const Status status = Listen(&reactor, at, nullptr, &second);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.os_errno(), EADDRINUSE);
  EXPECT_NE(status.message().find(EndpointText(at)), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace annulus
