// Members: the ranks of a communicator as the others see them, and the topology that follows from them.
//
// Threads: plain functions and values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/core/topology.h"
#include "collectives/membership/core_set.h"
#include "transport/select/select.h"
#include "transport/transport_info.h"

namespace annulus {

struct Member {
  std::string host_id;
  CoreSet cores;                       // Cores on which its process may run.
  std::vector<std::string> addresses;  // By index in the list of transports; "" = not usable on that rank.
  std::vector<std::string> reasons;    // By the same index, why it is not usable there; "" = off, or usable.
  bool has_devices = false;            // Whether it has memory domains beside host memory.
};

// What the transport between two ranks is chosen by. It refers to `members`.
SelectEnd EndOf(std::span<const Member> members, int rank);

// The topology of these members, the same on every rank, because all have the same table. `transports` are those that
// the addresses belong to.
Topology FindTopology(TransportList transports, std::span<const Member> members);

// Number of cores of all members on `rank`'s host. Members with the same set of cores share them; different sets do not
// overlap.
int HostCores(std::span<const Member> members, int rank);

// Position of a rank among the ranks of its host, and their number.
struct LocalPlace {
  int rank = 0;
  int size = 1;
};
LocalPlace FindLocalPlace(std::span<const Member> members, int rank);

}  // namespace annulus
