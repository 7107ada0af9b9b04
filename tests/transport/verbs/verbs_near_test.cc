// Which of several devices a rank takes, on made-up machines: near its GPU or its CPUs, and not all the same one.
#include "transport/verbs/device/verbs_near.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/base/made_up_machine.h"
#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_ports.h"

namespace annulus {
namespace {

class VerbsNearTest : public ::testing::Test {
 protected:
  ~VerbsNearTest() override {
    SimulatedVerbs::SetMachine({});
    SetPortOfThisThread({});
    EXPECT_EQ(SimulatedVerbs::Counts().objects, 0u);
  }

  // Devices in one network, unless `infiniband` is false.
  void SetDevices(int count, bool infiniband = true) const {
    SimulatedVerbs::SetMachine({.devices = count, .sysfs = machine_.infiniband()});
    SetPortOfThisThread({.infiniband = infiniband});
  }
  static std::string Describe(const VerbsWish& wish) {
    VerbsPorts found;
    std::string left_out;
    EXPECT_TRUE(FindPorts(SimulatedVerbs::Api(), wish, &found, &left_out).ok());
    return found.size() == 1 ? found[0]->Describe() : "";
  }
  static std::string Taken(const VerbsNeighbour& near, int turn = 0, const std::string& device = "") {
    VerbsWish wish;
    wish.near = near;
    wish.turn = turn;
    wish.device = device;
    return Describe(wish);
  }
  // "sim0, port 1, InfiniBand LID 1 (PHB".
  static std::string Class(const std::string& taken) { return taken.substr(0, taken.find(" to GPU")); }
  static VerbsNeighbour Gpu(int number) { return {.gpu = "0000:1" + std::to_string(number) + ":00.0"}; }

  const MadeUpMachine machine_{"near"};
};

TEST_F(VerbsNearTest, TheDeviceNearestToTheGpuIsTakenAndTheDistanceTold) {
  machine_.AddTwoSockets();
  SetDevices(4);
  EXPECT_EQ(Taken(Gpu(0)), "sim3, port 1, InfiniBand LID 301 (PIX to GPU 0000:10:00.0, below one PCIe switch or port)");
  for (int gpu = 0; gpu < 4; ++gpu) {
    for (const int turn : {0, 1, 7}) {
      EXPECT_EQ(Taken(Gpu(gpu), turn).substr(0, 4), "sim" + std::to_string(3 - gpu)) << gpu;
    }
  }
  EXPECT_EQ(Taken({.gpu = "0000:10:00.0", .numa_node = 1}).substr(0, 4), "sim3") << "not the CPUs decide";
  EXPECT_EQ(Taken(Gpu(0), 0, "sim0"),
            "sim0, port 1, InfiniBand LID 1 (SYS to GPU 0000:10:00.0, on NUMA nodes 1 and 0)");
}

// The near one is down, or absent: the next class counts.
TEST_F(VerbsNearTest, WhereTheNearestIsNotUsableTheNextOneIsTaken) {
  machine_.AddTwoSockets();
  SimulatedVerbs::SetMachine({.devices = 4, .down = 0b1000, .sysfs = machine_.infiniband()});
  SetPortOfThisThread({.infiniband = true});
  EXPECT_EQ(Class(Taken(Gpu(0))), "sim2, port 1, InfiniBand LID 201 (PHB");
  SimulatedVerbs::SetMachine({.devices = 4, .down = 0b0010, .sysfs = machine_.infiniband()});
  EXPECT_EQ(Class(Taken(Gpu(2))), "sim0, port 1, InfiniBand LID 1 (NODE");
  SimulatedVerbs::SetMachine({.devices = 4, .down = 0b1100, .sysfs = machine_.infiniband()});
  std::set<std::string> taken;
  for (const int turn : {0, 1, 2, 3}) taken.insert(Taken(Gpu(0), turn));
  EXPECT_EQ(taken, (std::set<std::string>{
                       "sim0, port 1, InfiniBand LID 1 (SYS to GPU 0000:10:00.0, on NUMA nodes 1 and 0)",
                       "sim1, port 1, InfiniBand LID 101 (SYS to GPU 0000:10:00.0, on NUMA nodes 1 and 0; its turn of "
                       "2 that are equally good)"}));
}

// As in machines with two cards for two GPUs at each switch.
TEST_F(VerbsNearTest, RanksShareOutDevicesThatAreEquallyNear) {
  const std::string common = "pci0000:16/0000:16:01.0/0000:17:00.0/";
  for (const std::string number : {"0", "1"}) {
    machine_.AddDevice(common + "0000:18:0" + number + ".0/0000:1" + number + ":00.0", "0");
    machine_.AddCard("sim" + number, common + "0000:18:1" + number + ".0/0000:2" + number + ":00.0", "0");
  }
  machine_.AddCard("sim2", "pci0000:80/0000:80:01.0/0000:81:00.0", "1");
  SetDevices(3);
  EXPECT_EQ(Taken(Gpu(0), 0).substr(0, 4), "sim0");
  EXPECT_EQ(Taken(Gpu(1), 1).substr(0, 4), "sim1");
  // Where GPUs belong to ranks in turn, each second rank is near these two.
  EXPECT_EQ(Taken(Gpu(0), 2).substr(0, 4), "sim1");
  EXPECT_EQ(Taken(Gpu(0), 4).substr(0, 4), "sim0");
  EXPECT_EQ(Taken(Gpu(0), 6).substr(0, 4), "sim1");
  EXPECT_EQ(Taken({.numa_node = 1}, 1).substr(0, 4), "sim2");
}

TEST_F(VerbsNearTest, WhereNothingIsKnownRanksShareOutAllDevices) {
  SetDevices(3);
  const VerbsNeighbour nears[] = {{}, Gpu(0), {.gpu = "0000:10:00.0", .numa_node = 1}, {.numa_node = 0}};
  for (const VerbsNeighbour& near : nears) {
    EXPECT_EQ(Taken(near, 0), "sim0, port 1, InfiniBand LID 1");
    EXPECT_EQ(Taken(near, 1), "sim1, port 1, InfiniBand LID 101 (its turn of 3 that are equally good)");
    EXPECT_EQ(Taken(near, 4, "sim2"), "sim2, port 1, InfiniBand LID 201");
  }
}

// A virtual machine: all at one host bridge.
TEST_F(VerbsNearTest, OnAFlatBusRanksShareOutAllDevices) {
  machine_.AddDevice("pci0000:00/0000:10:00.0", "-1");
  for (const std::string number : {"0", "1"})
    machine_.AddCard("sim" + number, "pci0000:00/0000:00:0" + number + ".0", "-1");
  SetDevices(2);
  EXPECT_EQ(Class(Taken(Gpu(0), 0)), "sim0, port 1, InfiniBand LID 1 (PHB");
  EXPECT_EQ(Class(Taken(Gpu(0), 1)), "sim1, port 1, InfiniBand LID 101 (PHB");
}

// Nothing is known of the first one.
TEST_F(VerbsNearTest, ADeviceWithoutANodeIsTakenLast) {
  machine_.AddDevice("pci0000:0f/0000:10:00.0", "0");
  machine_.AddCard("sim0", "pci0000:40/0000:40:01.0", "-1");
  machine_.AddCard("sim1", "pci0000:80/0000:80:01.0", "1");
  SetDevices(2);
  EXPECT_EQ(Class(Taken(Gpu(0), 1)), "sim1, port 1, InfiniBand LID 101 (SYS");
  EXPECT_EQ(Taken({.numa_node = 1}),
            "sim1, port 1, InfiniBand LID 101 (on NUMA node 1 as the rank's CPUs, unlike sim0)");
  EXPECT_EQ(Taken({.numa_node = 0}, 1), "sim1, port 1, InfiniBand LID 101");
}

TEST_F(VerbsNearTest, ASlowLinkIsLeftAlone) {
  SetDevices(3);
  SimulatedVerbs::SetMachine({.devices = 3, .fast = 0b110, .sysfs = machine_.infiniband()});
  EXPECT_EQ(Taken({}, 0), "sim1, port 1, InfiniBand LID 101");
  EXPECT_EQ(Taken({}, 1), "sim2, port 1, InfiniBand LID 201 (its turn of 2 that are equally good)");
  EXPECT_EQ(Taken({}, 0, "sim0"), "sim0, port 1, InfiniBand LID 1") << "it was named";
}

// The second device's link leads nowhere.
TEST_F(VerbsNearTest, ABrokenLinkIsNoError) {
  machine_.AddDevice("pci0000:0f/0000:0f:01.0/0000:10:00.0", "0");
  machine_.AddCard("sim0", "pci0000:0f/0000:0f:02.0/0000:20:00.0", "0");
  machine_.Link("class/infiniband/sim1/device", machine_.sysfs() + "/devices/gone");
  SetDevices(2);
  EXPECT_EQ(Class(Taken(Gpu(0), 1)), "sim0, port 1, InfiniBand LID 1 (PHB");
  EXPECT_EQ(Taken(Gpu(0), 1, "sim1"), "sim1, port 1, InfiniBand LID 101");
}

TEST_F(VerbsNearTest, OfDevicesInOneNetworkTheOneNearTheCpusIsTakenAndTheReasonTold) {
  machine_.AddTwoSockets();
  SetDevices(4);
  EXPECT_EQ(Taken({.numa_node = 0}),
            "sim2, port 1, InfiniBand LID 201 (on NUMA node 0 as the rank's CPUs, unlike sim0)");
  EXPECT_EQ(Taken({.numa_node = 0}, 1),
            "sim3, port 1, InfiniBand LID 301 (on NUMA node 0 as the rank's CPUs, unlike sim0; its turn of 2 that are "
            "equally good)");
  EXPECT_EQ(Taken({.numa_node = 1}), "sim0, port 1, InfiniBand LID 1");
  EXPECT_EQ(Taken({.numa_node = 2}), "sim0, port 1, InfiniBand LID 1") << "no device is there";
  EXPECT_EQ(Taken({}), "sim0, port 1, InfiniBand LID 1") << "the rank may run anywhere";
}

// Other ranks might not reach it.
TEST_F(VerbsNearTest, ANearDeviceInAnotherNetworkIsNotTaken) {
  machine_.AddTwoSockets();
  SetDevices(4, false);
  for (const int turn : {0, 3}) {
    EXPECT_EQ(Taken({.numa_node = 0}, turn), "sim0, port 1, RoCE v2 127.0.0.1");
    EXPECT_EQ(Class(Taken(Gpu(0), turn)), "sim0, port 1, RoCE v2 127.0.0.1 (SYS");
  }
}

// The address towards the rendezvous decides which network it is, and not which of its devices.
TEST_F(VerbsNearTest, AllDevicesWithGoodAddressesAreCompared) {
  SetDevices(3, false);
  VerbsWish wish;
  wish.local_host = "127.0.1.1";
  VerbsPorts all;
  ASSERT_TRUE(VerbsDevice::FindAll(SimulatedVerbs::Api(), wish, &all).ok());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]->name() + all[1]->name() + all[2]->name(), "sim1sim0sim2");
  EXPECT_EQ(Describe(wish), "sim1, port 1, RoCE v2 127.0.1.1");
}

}  // namespace
}  // namespace annulus
