// Topology: the layout of a job that the ranks find when they meet: who shares a host, which transports connect them,
// and how many share a core. Equal on all ranks.
//
// Threads: plain values.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/core/host_grid.h"
#include "transport/transport_info.h"

namespace annulus {

struct Topology {
  Topology() = default;
  // `hosts` has the host number of each rank, numbered in order of the hosts' first ranks. Empty: the layout is not
  // known, and all ranks count as on one host.
  explicit Topology(int ranks, std::vector<int> hosts = {}) : nranks(ranks), host_of(std::move(hosts)), grid(host_of) {}

  bool between_hosts() const {
    return std::any_of(host_of.begin(), host_of.end(), [](int host) { return host != 0; });
  }

  int nranks = 1;
  std::vector<int> host_of;             // Host number by rank; empty: not known.
  HostGrid grid;                        // Grid that host_of makes.
  const TransportInfo* near = nullptr;  // Transport between ranks of one host; null: not known.
  const TransportInfo* far = nullptr;   // Transport between hosts; null: not known.
  bool have_devices = false;            // Whether every rank has memory domains beside host memory.
  bool by_system_calls = false;         // Whether messages of some pair of ranks cost system calls.
  double ranks_per_core = 1;            // Largest of any host; at least 1.
};

}  // namespace annulus
