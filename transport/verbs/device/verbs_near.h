// Which devices are near the CPUs of a rank: on the same NUMA node.
//
// Threads: plain functions.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace annulus {

// The device's NUMA node; -1: the system knows none.
int NumaNodeOf(const ibv_device& device);

// The NUMA node of all CPUs on which this thread may run; -1: there are several, or the system knows none. `folder`:
// where the system tells.
int NumaNodeOfThisThread(const std::string& folder = "/sys/devices/system/node");

// How far a card is from another device of the machine.
struct VerbsDistance {
  bool is_far = false;  // Known to be on another NUMA node.
  std::string text;     // "below one PCIe switch or port"; "" when the system does not tell.
};

// `pci_address`: of the other one, "0000:17:00.0". Goes by the folders in which the system has both, and their NUMA
// nodes.
VerbsDistance DistanceOf(const ibv_device& card, const std::string& pci_address);

}  // namespace annulus
