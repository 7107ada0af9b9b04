// Which devices are near: to the GPU of a rank, or else to its CPUs.
//
// Threads: plain functions.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/machine/machine_places.h"

namespace annulus {

MachinePlace PlaceOf(const ibv_device& card);
// Where the kernel has another device of the machine that this card is in; "0000:17:00.0".
MachinePlace PlaceBesides(const ibv_device& card, const std::string& pci_address);

// How far a card is from another device of the machine.
struct VerbsDistance {
  Nearness nearness = Nearness::kUnknown;
  std::string text;  // "below one PCIe switch or port"; "" when the system does not tell.
};

// `pci_address`: of the other one, "0000:17:00.0". Goes by the folders in which the system has both, and their NUMA
// nodes.
VerbsDistance DistanceOf(const ibv_device& card, const std::string& pci_address);

// What a rank wants its device to be near to.
struct VerbsNeighbour {
  std::string gpu = {};  // Address on PCI of its GPU; "": it has none.
  int numa_node = -1;    // That of its CPUs, which decides between cards that are equally near to the GPU. -1: none.
};

// How near a card is: the less, the nearer. Cards of which nothing is known are between near and far ones.
int StepsFrom(const ibv_device& card, const VerbsNeighbour& neighbour);

}  // namespace annulus
