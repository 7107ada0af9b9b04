// The sim backend: links of a SimWorld behind the Transport interface.
#pragma once

#include <memory>

#include "transport/sim/sim_world.h"
#include "transport/transport.h"

namespace annulus {

// The transport of `rank`; `world` outlives it and its endpoints. Connect() never waits: the other end may come later.
std::unique_ptr<Transport> CreateSimTransport(SimWorld* world, int rank);

}  // namespace annulus
