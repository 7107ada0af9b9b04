// Which device verbs takes, and what it says where it has none: each reason names what to do.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/membership/peer_info.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/device/verbs_ports.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

class VerbsProbeTest : public ::testing::Test {
 protected:
  VerbsProbeTest() {
    config_.local_host = "10.1.2.3";
    config_.reactor = &reactor_;
  }
  ~VerbsProbeTest() override { SimulatedVerbs::SetMachine({}); }

  Status Probe(const SimulatedMachine& machine) {
    SimulatedVerbs::SetMachine(machine);
    return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config_)->Probe();
  }
  void ExpectRefused(const SimulatedMachine& machine, const std::string& reason) {
    const Status status = Probe(machine);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
  }

  Reactor reactor_;
  TransportConfig config_;
};

TEST_F(VerbsProbeTest, AMachineWithAnActivePortIsUsable) {
  EXPECT_TRUE(Probe({}).ok());
  EXPECT_EQ(SimulatedVerbs::Counts().objects, 0u) << "the probe left something behind";
}

TEST_F(VerbsProbeTest, WithoutTheLibraryItSaysWhatToInstall) {
  const auto transport = CreateVerbsTransportOver(nullptr, "no libibverbs.so.1: install libibverbs1", config_);
  EXPECT_EQ(transport->Probe().code(), Code::kUnsupported);
  EXPECT_EQ(transport->Probe().message(), "no libibverbs.so.1: install libibverbs1");
}

TEST_F(VerbsProbeTest, EachReasonIsNamed) {
  ExpectRefused({.has_device = false}, "there is no RDMA device");
  ExpectRefused({.port_state = IBV_PORT_DOWN}, "sim0, port 1 is down: check the cable");
  ExpectRefused({.port_state = IBV_PORT_INIT}, "waits for a subnet manager");
  ExpectRefused({.has_roce_v2 = false}, "sim0, port 1 has no RoCE v2 GID: give its interface an IP address");
  ExpectRefused({.gid_error = EACCES}, "sim0 cannot list its GIDs: Permission denied");
  ExpectRefused({.pkey = 0}, "has no partition key 0");
  ExpectRefused({.most_completions = 3}, "completion queues for at most 3 requests");
  ExpectRefused({.most_registered_bytes = 4096}, "cannot register");
}

// Besides messages and receives there are READs, if any, and always a keepalive.
TEST_F(VerbsProbeTest, TheCompletionQueueHasRoomForAllThatIsUnderWay) {
  const auto depth = static_cast<int>(VerbsQueueDepth(config_.slots));
  for (const int reads : {0, static_cast<int>(kMostVerbsReads)}) {
    config_.settings.Set("verbs_read_bytes", int64_t{reads} * 1000);
    EXPECT_FALSE(Probe({.most_completions = 2 * depth + reads}).ok());
    EXPECT_TRUE(Probe({.most_completions = 2 * depth + reads + 1}).ok());
  }
}

// The number is that of one link; ranks do not know yet how many they will have.
TEST_F(VerbsProbeTest, ALimitOnLockedMemoryIsNamedWithWhatIsNeeded) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{.rlim_cur = 64 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &low), 0);
  config_.slot_bytes = 256 << 10;
  config_.slots = 8;
  const Status status = Probe({.most_registered_bytes = 64 << 10});
  EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  const std::string text = "ulimit -l, is 64 KiB, and the links need about ";
  const size_t at = status.message().find(text);
  ASSERT_NE(at, std::string::npos) << status.message();
  const int kib = std::stoi(status.message().substr(at + text.size()));
  EXPECT_GE(kib, 2 * 8 * 256);
  EXPECT_LE(kib, 2 * 8 * 256 + 200);
}

TEST_F(VerbsProbeTest, WishesAreKeptOrRefused) {
  config_.settings.Set("verbs_device", std::string("mlx5_7"));
  ExpectRefused({}, "sim0 is not the wanted mlx5_7");
  config_.settings.Set("verbs_device", std::string("sim0"));
  EXPECT_TRUE(Probe({}).ok());
  config_.settings.Set("verbs_port", 2);
  ExpectRefused({}, "sim0 has 1 ports, not the wanted port 2");
  config_.settings.Set("verbs_port", 1);
  config_.settings.Set("verbs_gid", std::string("10.9.9.9"));
  ExpectRefused({}, "has no GID 10.9.9.9");
  config_.settings.Set("verbs_gid", std::string("nonsense"));
  ExpectRefused({}, "no numeric IPv4 or IPv6 address");
  config_.settings.Set("verbs_gid", std::string("127.0.0.1"));
  EXPECT_TRUE(Probe({}).ok());
  config_.settings.Set("verbs_pkey", 9);
  ExpectRefused({}, "no partition key 9");
}

// What a list of ports comes to; why some of it is not used is in *left_out.
std::string Found(const std::string& list, std::string* left_out) {
  VerbsWish wish;
  wish.device = list;
  VerbsPorts ports;
  const Status status = FindPorts(SimulatedVerbs::Api(), wish, &ports, left_out);
  std::string text = status.ok() ? "" : "error: " + status.message();
  for (const auto& port : ports) {
    if (status.ok()) text += (text.empty() ? "" : ", ") + port->name() + ":" + std::to_string(port->port());
  }
  return text;
}

TEST_F(VerbsProbeTest, SeveralPortsAreUsedWhereTheyAreNamed) {
  SimulatedVerbs::SetMachine({.devices = 3, .ports = 2});
  std::string left_out;
  EXPECT_EQ(Found("", &left_out), "sim0:1") << "one, unless several are named";
  EXPECT_EQ(Found("sim1", &left_out), "sim1:1");
  EXPECT_EQ(Found("sim2,sim0", &left_out), "sim2:1, sim0:1");
  EXPECT_EQ(Found("sim1:2,sim1:1,sim0", &left_out), "sim1:2, sim1:1, sim0:1");
  EXPECT_EQ(left_out, "");
}

TEST_F(VerbsProbeTest, PortsThatAreNotUsableAreLeftOutUnlessNoneIs) {
  SimulatedVerbs::SetMachine({.devices = 2, .down = 0b10});
  std::string left_out;
  EXPECT_EQ(Found("sim0,sim1", &left_out), "sim0:1");
  EXPECT_NE(left_out.find("sim1, port 1 is down"), std::string::npos) << left_out;
  EXPECT_EQ(Found("sim7,sim0", &left_out), "sim0:1");
  EXPECT_NE(left_out.find("sim0 is not the wanted sim7"), std::string::npos) << left_out;
  const std::string none = Found("sim1,sim7", &left_out);
  EXPECT_NE(none.find("error: no RDMA device is usable"), std::string::npos) << none;
  EXPECT_NE(none.find("sim1, port 1 is down"), std::string::npos) << none;
  EXPECT_NE(none.find("the wanted sim7"), std::string::npos) << none;
}

TEST_F(VerbsProbeTest, AListThatIsNoneIsRefused) {
  SimulatedVerbs::SetMachine({.devices = 8, .ports = 2});
  std::string left_out;
  for (const char* list : {",", "sim0,", ",sim0", "sim0:", "sim0:0", "sim0:256", "sim0:1x", ":1", "sim0:1:1"}) {
    EXPECT_NE(Found(list, &left_out).find("neither a device nor device:port"), std::string::npos) << list;
  }
  EXPECT_NE(Found("sim0,sim1,sim0", &left_out).find("sim0, port 1 comes twice"), std::string::npos);
  EXPECT_NE(Found("sim0:2,sim0,sim0:1", &left_out).find("sim0, port 1 comes twice"), std::string::npos);
  EXPECT_NE(Found("sim0,sim1,sim2,sim3,sim4,sim5,sim6,sim7,sim0:2", &left_out).find("at most 8 ports"),
            std::string::npos);
  EXPECT_EQ(SimulatedVerbs::Counts().objects, 0u);
}

using Pairs = std::vector<std::pair<size_t, size_t>>;

TEST_F(VerbsProbeTest, PortsArePairedByTheirNetworks) {
  EXPECT_EQ(PairPorts("a, b", "a, b"), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(PairPorts("a, b", "b, a"), (Pairs{{0, 1}, {1, 0}}));
  EXPECT_EQ(PairPorts("a, a", "a, a"), (Pairs{{0, 0}, {1, 1}})) << "one network, as of InfiniBand";
  EXPECT_EQ(PairPorts("a, a, b", "b, a"), (Pairs{{0, 1}, {2, 0}})) << "each port once";
  EXPECT_EQ(PairPorts("a, b", "c, b"), (Pairs{{1, 1}}));
  EXPECT_EQ(PairPorts("a, b", "c, d"), (Pairs{{0, 0}})) << "they may be routed";
  EXPECT_EQ(PairPorts("a", ""), (Pairs{{0, 0}}));
  EXPECT_EQ(PairPorts("a, a, a, a, a, a, a, a, a", "a, a, a, a, a, a, a, a, a").size(), kMostVerbsPorts);
}

TEST_F(VerbsProbeTest, TheAddressTellsTheNetworksOfAllPorts) {
  SimulatedVerbs::SetMachine({.devices = 8});
  config_.local_host = "127.0.0.1";
  config_.settings.Set("verbs_device", std::string("sim0,sim1,sim2,sim3,sim4,sim5,sim6,sim7"));
  const auto transport = CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config_);
  std::string address;
  ASSERT_TRUE(transport->LocalAddress(&address).ok());
  EXPECT_LE(address.size(), 256u);
  EXPECT_EQ(kVerbsTransport.networks(address).substr(0, 43), "RoCE 127.0.0.0/8, RoCE 127.0.1.1/32, RoCE 1") << address;
}

// A path names an index in 8 bits.
// An address travels as a text of a PeerInfo. The longest place to listen has a link-local IPv6 address.
TEST_F(VerbsProbeTest, TheLongestAddressFitsIntoWhatRanksTellEachOther) {
  const std::string longest = "[fe80::1111:2222:3333:4444%interface-of-15]:65535";
  static_assert(kLongestNetworks < kLargestPeerText);
  EXPECT_LE(longest.size() + 1 + kLongestNetworks, kLargestPeerText);
}

TEST_F(VerbsProbeTest, AnAddressWhoseIndexNoPathCanNameIsNotUsed) {
  SimulatedVerbs::SetMachine({.gid_index = 256 + 5});
  std::unique_ptr<VerbsDevice> device;
  ASSERT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device).ok());
  EXPECT_EQ(device->gid_index(), 1);
}

// The provider lists the same address as RoCE v1 and, behind a gap, as RoCE v2.
TEST_F(VerbsProbeTest, TheAddressIsFoundByItsTypeAndNotByItsIndex) {
  SimulatedVerbs::SetMachine({});
  std::unique_ptr<VerbsDevice> device;
  ASSERT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device).ok());
  EXPECT_EQ(device->gid_index(), 5);
  EXPECT_EQ(device->Describe(), "sim0, port 1, RoCE v2 127.0.0.1");
  VerbsWish wish;
  wish.gid = "fe80::";
  ASSERT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), wish, &device).ok());
  EXPECT_EQ(device->gid_index(), 1);
}

// Such a device cannot connect queue pairs as the others do, though its ports look like good ones.
TEST_F(VerbsProbeTest, DevicesOfIwarpAreLeftOut) {
  ExpectRefused({.iwarp = 0b1}, "sim0 is an iWARP device: only InfiniBand and RoCE are used");
  SimulatedVerbs::SetMachine({.devices = 2, .iwarp = 0b1});
  std::string left_out;
  EXPECT_EQ(Found("", &left_out), "sim1:1");
}

// Hosts that have the same cards must announce the same network, and each kernel has found them in another order.
TEST_F(VerbsProbeTest, OfDevicesThatAreEquallyGoodTheNameDecides) {
  std::string left_out;
  for (const bool reversed : {false, true}) {
    SimulatedVerbs::SetMachine({.devices = 3, .reversed = reversed});
    EXPECT_EQ(Found("", &left_out), "sim0:1");
  }
}

std::string Network(const std::string& address, int bits) {
  std::array<uint8_t, 16> gid{};
  EXPECT_TRUE(GidOf(address, &gid));
  return NetworkText(gid, bits);
}

TEST_F(VerbsProbeTest, TheAddressTellsTheNetworkOfTheDevice) {
  EXPECT_EQ(Network("10.1.2.3", 8), "10.0.0.0/8");
  EXPECT_EQ(Network("10.1.2.3", 30), "10.1.2.0/30");
  EXPECT_EQ(Network("10.1.2.3", 32), "10.1.2.3/32");
  EXPECT_EQ(Network("fd00:1:2:3:4::5", 64), "fd00:1:2:3::/64");
  EXPECT_EQ(Network("fd00:1:2:3:4::5", 128), "fd00:1:2:3:4::5/128");
  SimulatedVerbs::SetMachine({});
  config_.local_host = "127.0.0.1";
  const auto transport = CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config_);
  std::string address;
  ASSERT_TRUE(transport->LocalAddress(&address).ok());
  EXPECT_EQ(kVerbsTransport.networks(address), "RoCE 127.0.0.0/8") << address;
  EXPECT_EQ(EndpointOf(address).substr(0, 10), "127.0.0.1:");
  EXPECT_EQ(NetworksOf("1.2.3.4:5"), "");
  EXPECT_EQ(NetworksOf("1.2.3.4:5 RoCE\n10.0.0.0/24"), "") << "it is shown to people";
  EXPECT_EQ(EndpointOf(""), "");
}

}  // namespace
}  // namespace annulus
