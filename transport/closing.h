// Closing endpoints, and waiting for what they have sent.
//
// Threads: that of the endpoints. Blocks for a bounded time.
#pragma once

#include <memory>
#include <span>

#include "transport/transport.h"

namespace annulus {

// Closes all of `endpoints` (some may be null) until nothing is to be waited for. Takes as long as the slowest link,
// not as their sum.
void CloseEndpoints(std::span<const std::unique_ptr<Endpoint>> endpoints);

}  // namespace annulus
