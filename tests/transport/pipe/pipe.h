// The pipe transport: the least that a transport can be, to show that the library needs no change for one more. Links
// ranks of one host by UNIX sockets.
//
// Threads: as transport/transport.h says.
#pragma once

#include <memory>

#include "transport/transport_info.h"

namespace annulus {

extern const TransportInfo kPipeTransport;

std::unique_ptr<Transport> CreatePipeTransport(const TransportConfig& config);

}  // namespace annulus
