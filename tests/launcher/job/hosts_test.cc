// Lists of hosts, the places that ranks get on them, and the address at which they meet.
#include "launcher/job/hosts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "launcher/remote/rendezvous_host.h"

namespace annulus {
namespace {

std::string Parsed(const std::string& text) {
  std::vector<HostSlots> hosts;
  const Status status = ParseHosts(text, &hosts);
  if (!status.ok()) return "wrong: " + status.message();
  std::string result;
  for (const HostSlots& host : hosts) result += host.name + "=" + std::to_string(host.slots) + ";";
  return result;
}

TEST(ParseHosts, AllForms) {
  EXPECT_EQ(Parsed("a:2,b"), "a=2;b=1;");
  EXPECT_EQ(Parsed("user@node-1.cluster_x:1024"), "user@node-1.cluster_x=1024;");
  EXPECT_EQ(Parsed("10.0.0.1:3,[fe80::1%eth0]:2,[::1],me@[::2]:4"), "10.0.0.1=3;fe80::1%eth0=2;::1=1;me@::2=4;");
}

TEST(ParseHosts, MistakesAreShown) {
  for (const char* wrong : {",", "a,,b", ":2", "a:", "a:0", "a:1025", "a:-1", "a:two", "fe80::1:2", "[::1", "[::1]x:2",
                            "]a[", "-oProxyCommand=x", "me@-x", "a b", "a;b", "a'b", "$(a)"}) {
    EXPECT_TRUE(Parsed(wrong).starts_with("wrong: ")) << wrong << " " << Parsed(wrong);
  }
  EXPECT_NE(Parsed("good:2,bad:0").find("\"bad:0\""), std::string::npos);
}

class HostFile : public testing::Test {
 protected:
  Status Read(const std::string& text) {
    const std::string path = testing::TempDir() + "/hosts";
    std::ofstream(path) << text;
    hosts_.clear();
    return ReadHostFile(path, &hosts_);
  }
  std::vector<HostSlots> hosts_;
};

TEST_F(HostFile, BothForms) {
  ASSERT_TRUE(Read("# all\nnode1 slots=4\n\n  node2:2   # two\r\nnode3\n::1 slots=3").ok());
  ASSERT_EQ(hosts_.size(), 4u);
  EXPECT_EQ(hosts_[0].slots, 4);
  EXPECT_EQ(hosts_[1].name, "node2");
  EXPECT_EQ(hosts_[1].slots, 2);
  EXPECT_EQ(hosts_[2].slots, 1);
  EXPECT_EQ(hosts_[3].name, "::1");
  EXPECT_EQ(hosts_[3].slots, 3);
}

TEST_F(HostFile, MistakesNameTheLine) {
  EXPECT_NE(Read("node1\nnode2 slots=many\n").message().find("/hosts:2: \"node2 slots=many\""), std::string::npos);
  EXPECT_FALSE(Read("node1 cpus=2").ok());
  EXPECT_FALSE(Read("node1 slots=2 max_slots=4").ok());
  EXPECT_NE(Read("# nobody\n").message().find("names no host"), std::string::npos);
  EXPECT_NE(ReadHostFile("/no/such/file", &hosts_).message().find("/no/such/file"), std::string::npos);
}

TEST(IsThisHost, KnowsItsOwnNames) {
  std::array<char, 256> name{};
  ASSERT_EQ(gethostname(name.data(), name.size() - 1), 0);
  for (const std::string& own :
       {std::string("localhost"), std::string("127.0.0.1"), std::string("::1"), std::string(name.data())}) {
    EXPECT_TRUE(IsThisHost(own)) << own;
  }
  for (const std::string other : {"10.0.0.1", "elsewhere", "user@localhost"}) EXPECT_FALSE(IsThisHost(other)) << other;
}

TEST(PlaceRanks, HostByHostAsListed) {
  std::vector<Placement> placements;
  ASSERT_TRUE(PlaceRanks({{"b", 2}, {"localhost", 1}, {"a", 3}}, 0, &placements).ok());
  ASSERT_EQ(placements.size(), 3u);
  EXPECT_EQ(placements[0].host, "b");
  EXPECT_FALSE(placements[0].here);
  EXPECT_EQ(placements[1].first_rank, 2);
  EXPECT_TRUE(placements[1].here);
  EXPECT_EQ(placements[2].first_rank, 3);
  EXPECT_EQ(placements[2].nranks, 3);
}

TEST(PlaceRanks, FewerRanksThanSlotsLeaveHostsOut) {
  std::vector<Placement> placements;
  ASSERT_TRUE(PlaceRanks({{"a", 2}, {"b", 2}, {"c", 2}}, 3, &placements).ok());
  ASSERT_EQ(placements.size(), 2u);
  EXPECT_EQ(placements[1].nranks, 1);
}

TEST(PlaceRanks, Refusals) {
  std::vector<Placement> placements;
  EXPECT_EQ(PlaceRanks({{"a", 2}}, 3, &placements).message(), "-np is 3, but the hosts have 2 slots");
  placements.clear();
  EXPECT_EQ(PlaceRanks({{"a", 2}, {"a", 2}}, 0, &placements).message(), "the host a is listed twice");
  placements.clear();
  EXPECT_EQ(PlaceRanks({{"localhost", 2}, {"127.0.0.1", 2}}, 0, &placements).message(),
            "localhost and 127.0.0.1 are both this host");
}

std::string Meeting(const std::vector<Placement>& placements, const std::vector<std::string>& connections) {
  std::string host;
  const Status status = FindRendezvousHost(placements, connections, &host);
  return status.ok() ? host : status.message();
}

TEST(RendezvousHost, IsWhereSshReachedTheFirstHost) {
  const Placement a{"a", false, 0, 1};
  const Placement b{"b", false, 1, 1};
  EXPECT_EQ(Meeting({a, b}, {"10.0.0.9 5000 10.0.0.1 22", "10.0.0.9 5001 10.0.0.2 22"}), "10.0.0.1");
  EXPECT_EQ(Meeting({a, b}, {"fd00::9 5000 fd00::1 22", ""}), "fd00::1");
  EXPECT_EQ(Meeting({a}, {"10.0.0.9 5000 10.0.0.1 22"}), "127.0.0.1");
}

TEST(RendezvousHost, OfThisHostIsWhereOthersSeeItsConnections) {
  const Placement here{"localhost", true, 0, 1};
  const Placement b{"b", false, 1, 1};
  EXPECT_EQ(Meeting({here, b}, {"", "10.0.0.9 5001 10.0.0.2 22"}), "10.0.0.9");
}

TEST(RendezvousHost, ThatOthersCannotUseIsRefused) {
  const Placement a{"a", false, 0, 1};
  const Placement b{"b", false, 1, 1};
  for (const char* useless :
       {"127.0.0.1 5000 127.0.0.1 22", "fe80::9%eth0 1 fe80::1%eth0 22", "::1 1 ::1 2", "", "odd"}) {
    EXPECT_NE(Meeting({a, b}, {useless, ""}).find("give --rendezvous-host"), std::string::npos) << useless;
  }
}

}  // namespace
}  // namespace annulus
