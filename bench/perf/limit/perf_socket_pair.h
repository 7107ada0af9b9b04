// Plain TCP connections between ring neighbours, for the limit probe.
//
// The listening port is open only while the ranks connect, and takes only the neighbour that shows the token which the
// ranks agreed on over Annulus; nothing that a stranger sends is believed or kept.
//
// Threads: one thread at a time; collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include "base/status.h"
#include "bench/perf/perf_group.h"

namespace annulus::perf {

// Which neighbours to connect to, and the connected non-blocking sockets, -1 where there is none; the caller closes
// them.
struct Neighbours {
  bool wants_next = false;
  bool wants_prev = false;
  int to_next = -1;
  int from_prev = -1;
};

// Returns an error only when the ranks cannot agree any more. What went wrong with this rank's sockets is *connected.
Status ConnectNeighbours(Group& group, const annulus_config_t& config, Neighbours* links, Status* connected);

}  // namespace annulus::perf
