// Where devices and processors of this machine are, as the kernel tells in sysfs, and how near two of them are.
//
// The classes are those that people know from `nvidia-smi topo -m`. Where the kernel tells nothing, as in many virtual
// machines and containers, nothing is known, and that is no error.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace annulus {

// How two devices reach each other, the nearest first.
enum class Nearness : uint8_t {
  kPix,      // By one PCIe switch at most.
  kPxb,      // By several PCIe switches, but no host bridge.
  kPhb,      // By a PCIe host bridge, most often of a processor.
  kNode,     // By several host bridges of one NUMA node.
  kSys,      // By the link between NUMA nodes.
  kUnknown,  // The kernel does not tell.
};

// "PIX"; "" for kUnknown.
const char* NameOf(Nearness nearness);

// Where the kernel has a device.
struct MachinePlace {
  // From a host bridge, "pci0000:16", by the bridges to the device itself, "0000:18:00.0"; empty: not known.
  std::vector<std::string> way;
  int numa_node = -1;  // -1: not known.
};

// `folder`: the device's, such as "/sys/class/infiniband/mlx5_0/device". It may be a link.
MachinePlace PlaceAt(const std::string& folder);
// `pci_address`: "0000:18:00.0". `sysfs`: where the kernel tells.
MachinePlace PlaceOfPciDevice(const std::string& pci_address, const std::string& sysfs = "/sys");

Nearness NearnessOf(const MachinePlace& first, const MachinePlace& second);
// "below one PCIe switch or port"; "" where it is not known.
std::string NearnessText(const MachinePlace& first, const MachinePlace& second);

// The NUMA node of all CPUs on which this thread may run; -1: there are several, or the system knows none. `folder`:
// where the system tells.
int NumaNodeOfThisThread(const std::string& folder = "/sys/devices/system/node");

}  // namespace annulus
