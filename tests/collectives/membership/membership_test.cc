// Memberships: what a job's ranks learn when they meet, and what a membership made from another keeps.
#include "collectives/membership/membership.h"

#include <gtest/gtest.h>

#include <string>

#include "transport/select/select.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

const TransportInfo* const kBoth[] = {&kShmTransport, &kTcpTransport};

// A rank of that host which runs on `cores` cores and can use both transports.
Member On(const std::string& host, uint32_t cores = 8) {
  Member member;
  member.host_id = host;
  member.cores = {cores, 1};
  member.addresses = {"shm", "tcp"};
  return member;
}

TEST(MembershipTest, BeforeTheyMeetRanksKnowOnlyHowManyTheyAre) {
  const Membership job(3);
  EXPECT_EQ(job.epoch(), 0u);
  EXPECT_EQ(job.nranks(), 3);
  EXPECT_EQ(job.process_rank(2), 2);
  EXPECT_TRUE(job.members().empty());
  EXPECT_TRUE(job.topology().host_of.empty());
  EXPECT_FALSE(job.topology().between_hosts());
}

TEST(MembershipTest, RanksThatMetHaveATopology) {
  const Membership met = Membership(4).Met(kBoth, {On("b"), On("a", 1), On("a", 1), On("b")});
  EXPECT_EQ(met.epoch(), 0u);
  EXPECT_EQ(met.topology().nranks, 4);
  EXPECT_EQ(met.topology().host_of, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_TRUE(met.topology().between_hosts());
  EXPECT_TRUE(met.topology().grid.exists());
  EXPECT_EQ(met.topology().near, &kShmTransport);
  EXPECT_EQ(met.topology().far, &kTcpTransport);
  EXPECT_TRUE(met.topology().by_system_calls);
  EXPECT_EQ(met.topology().ranks_per_core, 2) << "two ranks of host a share a core";
}

TEST(MembershipTest, SomeRanksOfAnotherKeepTheirProcessRanksAndMeetAnew) {
  const Membership job = Membership(4).Met(kBoth, {On("a"), On("a"), On("b"), On("b")});
  const Membership odd = job.Among({3, 1});
  EXPECT_EQ(odd.epoch(), 1u);
  EXPECT_EQ(odd.nranks(), 2);
  EXPECT_EQ(odd.process_rank(0), 3);
  EXPECT_EQ(odd.process_rank(1), 1);
  EXPECT_TRUE(odd.members().empty());
  const Membership one = odd.Met(kBoth, {On("b"), On("a")}).Among({1});
  EXPECT_EQ(one.epoch(), 2u);
  EXPECT_EQ(one.process_rank(0), 1) << "the rank in the job's first communicator, not in the one before";
  EXPECT_EQ(job.nranks(), 4) << "a membership does not change";
}

TEST(MembersTest, HaveTheirPlaceAmongTheRanksOfTheirHost) {
  const Member members[] = {On("a", 2), On("b", 4), On("a", 2), On("a", 2)};
  EXPECT_EQ(FindLocalPlace(members, 3).rank, 2);
  EXPECT_EQ(FindLocalPlace(members, 3).size, 3);
  EXPECT_EQ(FindLocalPlace(members, 1).rank, 0);
  EXPECT_EQ(FindLocalPlace(members, 1).size, 1);
  EXPECT_EQ(HostCores(members, 0), 2) << "the same two cores";
  EXPECT_EQ(HostCores(members, 1), 4);
}

TEST(MembersTest, WithoutSharedMemoryUseSocketsOnOneHostToo) {
  std::vector<Member> members = {On("a"), On("a")};
  EXPECT_FALSE(FindTopology(kBoth, members).by_system_calls);
  members[1].addresses[0].clear();
  const Topology topology = FindTopology(kBoth, members);
  EXPECT_TRUE(topology.by_system_calls);
  EXPECT_EQ(topology.near, &kTcpTransport);
}

}  // namespace
}  // namespace annulus
