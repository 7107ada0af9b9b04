// Names and routes to the rendezvous that are there only after a while, as a cluster's names are, or never.
#include "collectives/membership/local_host.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/membership/bootstrap.h"
#include "tests/collectives/membership/bootstrap_fixture.h"

namespace {

constexpr char kLate[] = "late.annulus.test";
constexpr char kOwn[] = "own.annulus.test";
std::atomic<int> failures_left{0};

using LookUp = int (*)(const char*, const char*, const addrinfo*, addrinfo**);

}  // namespace

// In place of the C library's: kLate is this host, after some failures, and kOwn its name, as Debian's /etc/hosts has
// it.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const LookUp real = reinterpret_cast<LookUp>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node != nullptr && std::strcmp(node, kOwn) == 0) return real("127.0.1.1", service, nullptr, found);
  if (node == nullptr || std::strcmp(node, kLate) != 0) return real(node, service, hints, found);
  if (failures_left.load() > 0 && failures_left.fetch_sub(1) > 0) return EAI_NONAME;
  return real("127.0.0.1", service, nullptr, found);
}

namespace annulus {
namespace {

constexpr char kRendezvous[] = "late.annulus.test:29500";

TEST(LocalHostTest, ANameMayBeKnownOnlyAfterAWhile) {
  failures_left.store(3);
  std::string host;
  const Status status = AwaitLocalHost(kRendezvous, 1, DeadlineAfter(kPatience), nullptr, &host);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(host.empty());
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

TEST(LocalHostTest, AHostsOwnNameIsNoLoopbackForOthers) {
  std::string host;
  ASSERT_TRUE(FindLocalHost("own.annulus.test:29500", DeadlineAfter(kPatience), &host).ok());
  std::string own;
  ASSERT_TRUE(FindOwnHost("", &own).ok());
  EXPECT_EQ(host, own);
  ASSERT_TRUE(FindLocalHost("localhost:29500", DeadlineAfter(kPatience), &host).ok());
  EXPECT_TRUE(host == "127.0.0.1" || host == "::1") << host;
  ASSERT_TRUE(FindLocalHost("127.0.1.1:29500", DeadlineAfter(kPatience), &host).ok());
  EXPECT_EQ(host.substr(0, 4), "127.") << "who gives a number means it";
}

class OwnNameTest : public BootstrapFixture {
 protected:
  std::string At(const std::string& host) const { return host + ":" + std::to_string(port_); }
};

TEST_F(OwnNameTest, RankZeroListensWhereOthersFindIt) {
  std::vector<BootstrapConfig> configs = All(3);
  configs[0].rendezvous = At(kOwn);
  configs[1].rendezvous = At("127.0.0.1");  // As another host's name server has it.
  configs[2].rendezvous = At(kOwn);         // On rank 0's host.
  ExpectTable(Run(configs));
}

}  // namespace
}  // namespace annulus
