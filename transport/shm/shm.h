// Shared memory transport: links between ranks of one host, through a memory file that both ends map.
//
// Threads: as transport/transport.h says.
#pragma once

#include <memory>

#include "transport/transport_info.h"

namespace annulus {

extern const TransportInfo kShmTransport;

std::unique_ptr<Transport> CreateShmTransport(const TransportConfig& config);

}  // namespace annulus
