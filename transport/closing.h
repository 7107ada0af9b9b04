// Closes endpoints, and waits until what they have sent has left.
//
// Threads: that of the endpoints. Blocks for a bounded time.
#pragma once

#include <memory>
#include <span>

#include "transport/transport.h"

namespace annulus {

// Closes all of `endpoints` (some may be null) until there is nothing left to wait for. Takes as long as the slowest
// link, not the sum over all links.
void CloseEndpoints(std::span<const std::unique_ptr<Endpoint>> endpoints);

}  // namespace annulus
