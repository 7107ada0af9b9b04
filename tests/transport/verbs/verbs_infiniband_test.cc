// Links over InfiniBand ports of the simulated provider: what packets are addressed with, within a subnet and to
// another one, partitions, and what is told where a port cannot reach another one.
#include <annulus.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/device/verbs_route.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

using Gid = std::array<uint8_t, 16>;

Gid GidFrom(const std::string& text) {
  Gid gid{};
  EXPECT_TRUE(GidOf(text, &gid));
  return gid;
}

SimulatedPort PortWith(uint16_t lid, const std::string& gid = "fe80::1", uint16_t pkey = 0xffff,
                       bool needs_global = false) {
  return {.infiniband = true, .lid = lid, .gid = GidFrom(gid), .pkey = pkey, .needs_global = needs_global};
}

VerbsRemotePort Seen(const SimulatedPort& port) { return {!port.infiniband, port.lid, port.pkey, port.gid}; }

class VerbsInfinibandTest : public ::testing::Test {
 protected:
  ~VerbsInfinibandTest() override {
    SetPortOfThisThread({});
    EXPECT_EQ(SimulatedVerbs::Counts().objects, 0u);
  }

  static std::unique_ptr<VerbsDevice> DeviceWith(const SimulatedPort& port) {
    SetPortOfThisThread(port);
    std::unique_ptr<VerbsDevice> device;
    const Status found = VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device);
    EXPECT_TRUE(found.ok()) << found.ToString();
    return device;
  }
  static Status Route(const SimulatedPort& from, const SimulatedPort& to, ibv_ah_attr* address) {
    *address = {};
    return RouteTo(*DeviceWith(from), Seen(to), address);
  }
};

TEST_F(VerbsInfinibandTest, WithinASubnetTheLidIsEnough) {
  ibv_ah_attr address;
  ASSERT_TRUE(Route(PortWith(5), PortWith(0xbfff, "fe80::2"), &address).ok());
  EXPECT_EQ(address.dlid, 0xbfff);
  EXPECT_EQ(address.is_global, 0);
  EXPECT_EQ(address.port_num, 1);
  EXPECT_EQ(DeviceWith(PortWith(5))->Describe(), "sim0, port 1, InfiniBand LID 5");
}

TEST_F(VerbsInfinibandTest, APortThatWantsGlobalHeadersGetsThem) {
  ibv_ah_attr address;
  ASSERT_TRUE(Route(PortWith(5, "fe80::1", 0xffff, true), PortWith(6, "fe80::2"), &address).ok());
  EXPECT_EQ(address.dlid, 6);
  EXPECT_EQ(address.is_global, 1);
  EXPECT_EQ(address.grh.hop_limit, 1);
  EXPECT_EQ(Gid(std::to_array(address.grh.dgid.raw)), GidFrom("fe80::2"));
}

// 0x30 and 0x31 are the LIDs by which routers know the ports, and 1 and 2 the subnets.
TEST_F(VerbsInfinibandTest, AnotherSubnetIsReachedThroughTheRouterThatItsGidNames) {
  ibv_ah_attr address;
  ASSERT_TRUE(Route(PortWith(5, "fec0:0:30:1::1"), PortWith(6, "fec0:0:31:2::2"), &address).ok());
  EXPECT_EQ(address.dlid, 0x31);
  EXPECT_EQ(address.is_global, 1);
  EXPECT_GT(address.grh.hop_limit, 1);
  ASSERT_TRUE(Route(PortWith(5, "fec0:0:30:1::1"), PortWith(6, "fec0:0:31:1::2"), &address).ok());
  EXPECT_EQ(address.dlid, 6) << "one subnet, whatever routers know its ports by";
  EXPECT_EQ(address.is_global, 0);
}

void ExpectRefused(const Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("sim0, port 1"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
}

TEST_F(VerbsInfinibandTest, WhatCannotBeReachedIsSaid) {
  ibv_ah_attr address;
  ExpectRefused(Route(PortWith(5, "fe80:0:0:1::1"), PortWith(6, "fe80:0:0:2::1"), &address),
                "cannot reach InfiniBand LID 6: it is in another subnet, and its GID fe80:0:0:2::1 does not tell");
  ExpectRefused(Route(PortWith(5, "fec0:0:30:1::1"), PortWith(6, "fec0:0:0:2::1"), &address), "ANNULUS_VERBS_GID");
  ExpectRefused(Route(PortWith(5, "fec0:0:30:1::1"), PortWith(6, "fec0:0:c000:2::1"), &address), "ANNULUS_VERBS_GID");
  ExpectRefused(Route(PortWith(5, "fe80::1", 0x8001), PortWith(6, "fe80::1", 0x8002), &address),
                "their partition keys are 0x8001 and 0x8002: choose the same partition with ANNULUS_VERBS_PKEY");
  ExpectRefused(Route(PortWith(5, "fe80::1", 0x0001), PortWith(6, "fe80::1", 0x0001), &address),
                "both are limited members of partition 0x0001");
  EXPECT_TRUE(Route(PortWith(5, "fe80::1", 0x0001), PortWith(6, "fe80::1", 0x8001), &address).ok());
  ExpectRefused(Route(PortWith(5), {}, &address), "the peer has RoCE");
  ExpectRefused(Route({}, PortWith(5), &address), "the peer has InfiniBand");
}

TEST_F(VerbsInfinibandTest, TheNetworkNamesSubnetAndPartition) {
  EXPECT_EQ(VerbsNetwork(*DeviceWith(PortWith(5))), "InfiniBand fe80::/64");
  EXPECT_EQ(VerbsNetwork(*DeviceWith(PortWith(5, "fe80::1", 0x7fff))), "InfiniBand fe80::/64");
  EXPECT_EQ(VerbsNetwork(*DeviceWith(PortWith(5, "fe80::1", 0x8005))), "InfiniBand fe80::/64 partition 5");
  EXPECT_EQ(VerbsNetwork(*DeviceWith(PortWith(5, "fec0:0:30:2::1"))), "InfiniBand fec0:0:0:2::/64");
}

VerbsGreeting Greeting() {
  VerbsGreeting greeting;
  greeting.slots = 8;
  greeting.slot_bytes = 4096;
  greeting.num_rails = 1;
  VerbsRailGreeting& rail = greeting.rails[0];
  rail.queue_pair = 5;
  rail.lid = 7;
  rail.pkey = 0x8001;
  rail.mtu = IBV_MTU_2048;
  rail.gid = GidFrom("fe80::7");
  return greeting;
}

Status Reread(const VerbsGreeting& greeting, VerbsGreeting* read) {
  std::array<std::byte, VerbsGreeting::kBytes> bytes;
  WriteVerbsGreeting(greeting, bytes);
  return ReadVerbsGreeting(bytes, read);
}

TEST_F(VerbsInfinibandTest, AGreetingTellsThePortAndIsChecked) {
  VerbsGreeting read;
  ASSERT_TRUE(Reread(Greeting(), &read).ok());
  EXPECT_EQ(read.rails[0].lid, 7);
  EXPECT_EQ(read.rails[0].pkey, 0x8001);
  EXPECT_FALSE(read.rails[0].ethernet);
  const auto expect_refused = [&read](const std::function<void(VerbsRailGreeting*)>& change, const std::string& what) {
    VerbsGreeting greeting = Greeting();
    change(&greeting.rails[0]);
    const Status status = Reread(greeting, &read);
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  expect_refused([](VerbsRailGreeting* each) { each->lid = 0; }, "a LID of 0");
  expect_refused([](VerbsRailGreeting* each) { each->lid = 0xc000; }, "a LID of 49152");
  expect_refused([](VerbsRailGreeting* each) { each->pkey = 0x8000; }, "a partition key of 32768");
  expect_refused([](VerbsRailGreeting* each) { each->mtu = 6; }, "an MTU of 6");
  VerbsGreeting roce = Greeting();
  roce.rails[0].ethernet = true;
  roce.rails[0].lid = roce.rails[0].pkey = 0;
  EXPECT_TRUE(Reread(roce, &read).ok()) << "these mean nothing there";
}

// The transport of each pair of two ranks on different hosts, whose ports are these, or the error of both.
struct Pair {
  std::string transport;
  std::vector<std::string> errors;
};

Pair Join(const SimulatedPort& first, const SimulatedPort& second, const std::string& transport,
          const std::string& ports = "") {
  TransportInfo verbs = SimulatedVerbsInfo();
  const TransportInfo* const list[] = {&verbs, &kTcpTransport};
  VerbsJob job{.transports = list};
  job.ranks.hosts = 2;
  job.ranks.transport = transport;
  job.before = [&](int rank, Options* options) {
    SetPortOfThisThread(rank == 0 ? first : second);
    options->verbs_device = ports;
  };
  std::array<Pair, 2> seen;
  const size_t count = ports.empty() ? 50'000 : 1'000'000;
  job.Try([&seen, count](int rank, const std::unique_ptr<Communicator>& comm, const Status& made) {
    Pair& own = seen[static_cast<size_t>(rank)];
    if (!made.ok()) {
      own.errors.push_back(made.message());
      return;
    }
    own.transport = comm->ReadPeer(1 - rank).transport;
    std::vector<int32_t> data(count, rank + 1);
    ASSERT_EQ(annulus_allreduce(Handle(comm), data.data(), data.data(), data.size(), ANNULUS_INT32, ANNULUS_SUM),
              ANNULUS_OK)
        << LastMessage(Handle(comm));
    EXPECT_EQ(data, std::vector<int32_t>(data.size(), 3));
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
  EXPECT_EQ(seen[0].transport, seen[1].transport);
  seen[0].errors.insert(seen[0].errors.end(), seen[1].errors.begin(), seen[1].errors.end());
  return seen[0];
}

TEST_F(VerbsInfinibandTest, JobsOverInfinibandSum) {
  EXPECT_EQ(Join(PortWith(5, "fe80::5"), PortWith(6, "fe80::6"), "auto").transport, "verbs");
  EXPECT_EQ(Join(PortWith(5, "fe80::5", 0xffff, true), PortWith(6, "fe80::6", 0xffff, true), "auto").transport,
            "verbs");
  EXPECT_EQ(Join(PortWith(5, "fe80::5", 0x8003), PortWith(6, "fe80::6", 0x0003), "auto").transport, "verbs");
  EXPECT_EQ(Join(PortWith(5, "fec0:0:30:1::5"), PortWith(6, "fec0:0:31:1::6"), "auto").transport, "verbs");
}

// All ports have the same prefix, so they are paired in their order.
TEST_F(VerbsInfinibandTest, JobsOverTwoInfinibandRailsSum) {
  SimulatedVerbs::SetMachine({.devices = 2});
  const SimulatedCounts before = SimulatedVerbs::Counts();
  EXPECT_EQ(Join(PortWith(5), PortWith(6), "auto", "sim0,sim1").transport, "verbs");
  for (const size_t device : {0, 1}) {
    EXPECT_GT(SimulatedVerbs::Counts().device_bytes[device], before.device_bytes[device] + 50'000) << device;
  }
  SimulatedVerbs::SetMachine({});
}

TEST_F(VerbsInfinibandTest, AnyTakesAnotherTransportWhereSubnetsPartitionsOrMembersAreApart) {
  EXPECT_EQ(Join(PortWith(5, "fe80:0:0:1::5"), PortWith(6, "fe80:0:0:2::6"), "auto").transport, "tcp");
  EXPECT_EQ(Join(PortWith(5, "fe80::5", 0x8003), PortWith(6, "fe80::6", 0x8004), "auto").transport, "tcp");
  EXPECT_EQ(Join(PortWith(5, "fe80::5", 0x0003), PortWith(6, "fe80::6", 0x0003), "auto").transport, "tcp")
      << "limited members, which only the greeting shows";
  EXPECT_EQ(Join(PortWith(5), {}, "auto").transport, "tcp");
}

TEST_F(VerbsInfinibandTest, ByNameAnotherSubnetIsReachedOrTheReasonIsTold) {
  EXPECT_EQ(Join(PortWith(5, "fec0:0:30:1::5"), PortWith(6, "fec0:0:31:2::6"), "verbs").transport, "verbs");
  const Pair apart = Join(PortWith(5, "fe80::5", 0x8003), PortWith(6, "fe80::6", 0x8004), "verbs");
  ASSERT_EQ(apart.errors.size(), 2u);
  for (const std::string& each : apart.errors) {
    EXPECT_NE(each.find("their partition keys are"), std::string::npos) << each;
  }
}

}  // namespace
}  // namespace annulus
