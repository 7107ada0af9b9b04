// How near devices are, on made-up machines.
#include "base/machine/machine_places.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/cpus.h"
#include "tests/base/made_up_machine.h"

namespace annulus {
namespace {

class MachinePlacesTest : public ::testing::Test {
 protected:
  // "PIX", or "" where it is not known; both ways alike.
  std::string Between(const std::string& first, const std::string& second) const {
    const MachinePlace one = PlaceOfPciDevice(first, machine_.sysfs());
    const MachinePlace other = PlaceOfPciDevice(second, machine_.sysfs());
    EXPECT_EQ(NearnessOf(one, other), NearnessOf(other, one));
    const std::string name = NameOf(NearnessOf(one, other));
    EXPECT_EQ(NearnessText(one, other).empty(), name.empty());
    return name;
  }

  const MadeUpMachine machine_{"places"};
};

TEST_F(MachinePlacesTest, AServerHasAllClasses) {
  machine_.AddTwoSockets();
  EXPECT_EQ(Between("0000:10:00.0", "0000:20:00.0"), "PIX");
  EXPECT_EQ(Between("0000:10:00.0", "0000:21:00.0"), "PHB");
  EXPECT_EQ(Between("0000:10:00.0", "0000:22:00.0"), "SYS");
  EXPECT_EQ(Between("0000:12:00.0", "0000:23:00.0"), "NODE");
  EXPECT_EQ(Between("0000:12:00.0", "0000:22:00.0"), "PIX");
  const MachinePlace place = PlaceAt(machine_.sysfs() + "/class/infiniband/sim3/device");
  EXPECT_EQ(place.way,
            (std::vector<std::string>{"pci0000:0c", "0000:0c:01.0", "0000:0d:00.0", "0000:0e:01.0", "0000:20:00.0"}));
  EXPECT_EQ(place.numa_node, 0);
  EXPECT_EQ(NearnessText(place, PlaceOfPciDevice("0000:13:00.0", machine_.sysfs())), "on NUMA nodes 0 and 1");
}

// One switch below another: two bridges more on the way.
TEST_F(MachinePlacesTest, SwitchesBelowSwitchesAreFurther) {
  const std::string upper = "pci0000:16/0000:16:01.0/0000:17:00.0/";
  machine_.AddDevice(upper + "0000:18:00.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0", "0");
  machine_.AddDevice(upper + "0000:18:00.0/0000:19:00.0/0000:1a:01.0/0000:1c:00.0", "0");
  machine_.AddDevice(upper + "0000:18:01.0/0000:1d:00.0", "0");
  EXPECT_EQ(Between("0000:1b:00.0", "0000:1c:00.0"), "PIX");
  EXPECT_EQ(Between("0000:1b:00.0", "0000:1d:00.0"), "PXB");
}

// The functions of a card with two ports, directly below a port of the processor.
TEST_F(MachinePlacesTest, FunctionsOfOneCardAreNear) {
  machine_.AddDevice("pci0000:16/0000:16:01.0/0000:17:00.0", "0");
  machine_.AddDevice("pci0000:16/0000:16:01.0/0000:17:00.1", "0");
  EXPECT_EQ(Between("0000:17:00.0", "0000:17:00.1"), "PIX");
  EXPECT_EQ(Between("0000:17:00.0", "0000:17:00.0"), "PIX");
}

TEST_F(MachinePlacesTest, ALaptopHasOneHostBridgeAndNoNodes) {
  machine_.AddDevice("pci0000:00/0000:00:01.0/0000:01:00.0", "-1");
  machine_.AddDevice("pci0000:00/0000:00:1d.0/0000:02:00.0", "-1");
  EXPECT_EQ(Between("0000:01:00.0", "0000:02:00.0"), "PHB");
}

// Each device has a host bridge of its own, and no node.
TEST_F(MachinePlacesTest, AVirtualMachineTellsNothing) {
  machine_.AddDevice("LNXSYSTM:00/VMBUS:00/47505500/pci0001:00/0001:00:00.0", "-1");
  machine_.AddDevice("LNXSYSTM:00/VMBUS:00/47505501/pci0002:00/0002:00:00.0", "-1");
  machine_.AddDevice("LNXSYSTM:00/VMBUS:00/47505502/pci0003:00/0003:00:00.0", "0");
  EXPECT_EQ(Between("0001:00:00.0", "0002:00:00.0"), "");
  EXPECT_EQ(Between("0001:00:00.0", "0003:00:00.0"), "");
  EXPECT_EQ(PlaceOfPciDevice("0001:00:00.0", machine_.sysfs()).way.size(), 2u);
}

TEST_F(MachinePlacesTest, WhatIsBrokenTellsNothing) {
  machine_.AddDevice("pci0000:00/0000:00:01.0", "nonsense");
  machine_.AddDevice("pci0001:00/0001:00:01.0", "99999999999999999999");
  machine_.Link("bus/pci/devices/0000:02:00.0", machine_.sysfs() + "/devices/gone");
  machine_.Link("bus/pci/devices/0000:03:00.0", "0000:03:00.0");
  machine_.AddDevice("virtual/net/0000:04:00.0", "0");
  for (const char* other : {"0001:00:01.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", "0000:05:00.0", ""}) {
    EXPECT_EQ(Between("0000:00:01.0", other), "") << other;
  }
  EXPECT_EQ(PlaceOfPciDevice("0000:00:01.0", machine_.sysfs()).numa_node, -1);
  EXPECT_EQ(PlaceOfPciDevice("0001:00:01.0", machine_.sysfs()).numa_node, -1);
  EXPECT_TRUE(PlaceOfPciDevice("0000:04:00.0", machine_.sysfs()).way.empty());
  EXPECT_TRUE(PlaceOfPciDevice("0000:10:00.0", machine_.sysfs() + "/none").way.empty());
}

TEST_F(MachinePlacesTest, TheNodeOfAThreadIsThatOfAllItsCpus) {
  const std::vector<int> cpus = AllowedCpus();
  ASSERT_FALSE(cpus.empty());
  const std::string first = std::to_string(cpus.front());
  const std::string& folder = machine_.sysfs();
  machine_.Write("online", "0,3-4\n");
  machine_.Write("node0/cpulist", "\n");
  machine_.Write("node3/cpulist", "5000-5003\n");
  machine_.Write("node4/cpulist", "4999," + first + "-" + std::to_string(cpus.back()) + "\n");
  EXPECT_EQ(NumaNodeOfThisThread(folder), 4);
  machine_.Write("node4/cpulist", "4999," + std::to_string(cpus.back() + 1) + "-5000\n");
  EXPECT_EQ(NumaNodeOfThisThread(folder), -1);
  machine_.Write("node4/cpulist", "-" + first + "\n");
  EXPECT_EQ(NumaNodeOfThisThread(folder), -1) << "that is no list";
  EXPECT_EQ(NumaNodeOfThisThread(folder + "/none"), -1);
}

}  // namespace
}  // namespace annulus
