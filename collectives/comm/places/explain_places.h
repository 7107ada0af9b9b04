// ExplainPlaces: where the ranks of a communicator are: their hosts, GPUs and network devices, how near these are to
// each other, and how the GPUs of a host reach each other.
//
// Threads: as for a call of the communicator.
#pragma once

#include <string>

#include "base/status.h"
#include "collectives/annulus.h"

namespace annulus {

// Sets *text to some lines, the same on every rank; "" when no rank has a GPU or a network device that its transports
// chose. Collective. Errors: those of an allgather.
Status ExplainPlaces(annulus_comm_t* comm, std::string* text);

}  // namespace annulus
