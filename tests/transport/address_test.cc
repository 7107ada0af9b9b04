// Tests of addresses: text, resolution and listening.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "transport/stream_socket.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;

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
  std::vector<StreamEndpoint> endpoints;
  ASSERT_TRUE(Resolve("localhost:29500", DeadlineAfter(kPatience), &endpoints).ok());
  ASSERT_FALSE(endpoints.empty());
  EXPECT_TRUE(IsLoopback(endpoints[0]));
  ASSERT_TRUE(Resolve("[::1]:29500", DeadlineAfter(kPatience), &endpoints).ok());
  EXPECT_EQ(EndpointText(endpoints[0]), "[::1]:29500");
  EXPECT_EQ(Resolve("no port", DeadlineAfter(kPatience), &endpoints).code(), Code::kInvalidArgument);
}

// Instead of the C library's: "hung" is a name whose servers do not answer while the gate is closed.
class Gate {
 public:
  void Open() {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return open_; });
    passed_ = true;
    changed_.notify_all();
  }
  bool WaitUntilPassed() {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [this] { return passed_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = false;
  bool passed_ = false;
};
Gate gate;

TEST(AddressTest, AHungNameServerCostsNoMoreThanTheDeadline) {
  std::vector<StreamEndpoint> endpoints;
  const Status status = Resolve("hung:29500", DeadlineAfter(20 * kMillisecond), &endpoints);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("\"hung\""), std::string::npos) << status.message();
  // Only now: had Resolve waited for the answer, it would have waited for ever.
  gate.Open();
  EXPECT_TRUE(gate.WaitUntilPassed());
}

TEST(AddressTest, AnUnknownNameIsAnErrorThatNamesIt) {
  std::vector<StreamEndpoint> endpoints;
  const Status status = Resolve("unknown:29500", DeadlineAfter(kPatience), &endpoints);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.message().find("\"unknown\""), std::string::npos) << status.message();
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

extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  if (std::strcmp(host, "unknown") == 0) return EAI_NONAME;
  if (std::strcmp(host, "hung") == 0) {
    annulus::gate.Pass();
    return EAI_AGAIN;
  }
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, port, hints, found);
}
