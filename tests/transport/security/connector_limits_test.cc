// EstablishStreams in a process that has run out of file descriptors: it names its own limit, and never the peer.
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "tests/base/descriptor_limit.h"
#include "transport/security/connector.h"

namespace annulus {
namespace {

TEST(ConnectorLimitsTest, ADiallerWithoutDescriptorsNamesItsOwnLimit) {
  Reactor reactor;
  const StreamSocket first(reactor.context());  // Opens the descriptors that the reactor needs for itself.
  StreamEndpoint peer;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 1, &peer).ok());
  ConnectPlan plan;
  plan.hello = {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1};
  plan.key = "the key of this test";
  plan.dials = {{{0, 0, 0}, {peer}}};
  plan.deadline = DeadlineAfter(60 * kSecond);
  std::optional<DescriptorLimit> none(3);
  std::vector<Stream> streams;
  const Status status = EstablishStreams(&reactor, plan, &streams);
  none.reset();
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.os_errno(), EMFILE);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(status.message(),
            "rank 1 has no file descriptor left for a socket to dial rank 0: Too many open files (EMFILE; its limit, "
            "ulimit -n, is 3)");
}

}  // namespace
}  // namespace annulus
