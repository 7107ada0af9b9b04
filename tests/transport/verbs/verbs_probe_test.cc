// Which device verbs takes, and what it says where it has none: each reason names what to do.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>

#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_network.h"
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

// A path names an index in 8 bits.
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
  EXPECT_EQ(kVerbsTransport.network(address), "RoCE 127.0.0.0/8") << address;
  EXPECT_EQ(EndpointOf(address).substr(0, 10), "127.0.0.1:");
  EXPECT_EQ(NetworkOf("1.2.3.4:5"), "");
  EXPECT_EQ(NetworkOf("1.2.3.4:5 RoCE\n10.0.0.0/24"), "") << "it is shown to people";
  EXPECT_EQ(EndpointOf(""), "");
}

}  // namespace
}  // namespace annulus
