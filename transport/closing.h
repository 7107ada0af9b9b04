// Closes endpoints, and waits until what they have sent has left.
//
// Threads: that of the endpoints. Blocks for a bounded time.
#pragma once

#include <memory>
#include <span>

#include "base/clock.h"
#include "transport/transport.h"

namespace annulus {

// Closes all of `endpoints` (some may be null) until there is nothing left to wait for; does not wait for those to
// `lost`, a peer that is known to be gone (-1: none), and for none beyond `until`. Takes as long as the slowest link,
// not the sum over all links.
void CloseEndpoints(std::span<const std::unique_ptr<Endpoint>> endpoints, int lost = -1, Deadline until = kNoDeadline);

}  // namespace annulus
