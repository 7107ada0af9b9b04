// Names and routes to the rendezvous that are there only after a while, as a cluster's names are, or never.
#include "collectives/membership/local_host.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <cstring>

namespace {

constexpr char kLate[] = "late.annulus.test";
std::atomic<int> failures_left{0};

using LookUp = int (*)(const char*, const char*, const addrinfo*, addrinfo**);

}  // namespace

// In place of the C library's: kLate is this host, after some failures.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const LookUp real = reinterpret_cast<LookUp>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node == nullptr || std::strcmp(node, kLate) != 0) return real(node, service, hints, found);
  if (failures_left.load() > 0 && failures_left.fetch_sub(1) > 0) return EAI_NONAME;
  return real("127.0.0.1", service, nullptr, found);
}

namespace annulus {
namespace {

constexpr char kRendezvous[] = "late.annulus.test:29500";
constexpr Nanoseconds kPatience = 60 * kSecond;  // Only a failing test waits that long.

TEST(LocalHostTest, ANameMayBeKnownOnlyAfterAWhile) {
  failures_left.store(3);
  std::string host;
  const Status status = AwaitLocalHost(kRendezvous, 1, DeadlineAfter(kPatience), nullptr, &host);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(host, "127.0.0.1");
  EXPECT_EQ(failures_left.load(), 0);
}

TEST(LocalHostTest, ANameThatStaysUnknownIsToldAtTheDeadline) {
  failures_left.store(1'000'000);
  std::string host;
  const Status status = AwaitLocalHost(kRendezvous, 3, DeadlineAfter(300 * kMillisecond), nullptr, &host);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.peer(), 3);
  EXPECT_NE(status.message().find("found no way to the rendezvous late.annulus.test:29500 within"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("\"late.annulus.test\" cannot be looked up"), std::string::npos) << status.message();
}

TEST(LocalHostTest, WhoGivesUpMeanwhileIsHeard) {
  failures_left.store(1'000'000);
  std::string host;
  int asked = 0;
  const auto give_up = [&] { return ++asked == 2 ? Status(Code::kAborted, "enough") : Status(); };
  const Status status = AwaitLocalHost(kRendezvous, 1, DeadlineAfter(kPatience), give_up, &host);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(asked, 2);
}

TEST(LocalHostTest, WhatIsNoAddressIsRefusedAtOnce) {
  std::string host;
  EXPECT_EQ(AwaitLocalHost("no port", 1, DeadlineAfter(kPatience), nullptr, &host).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace annulus
