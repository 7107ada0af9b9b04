// TCP transport: links over one or more sockets, between any two ranks that reach each other by IPv4 or IPv6.
#pragma once

#include <memory>

#include "transport/transport_info.h"

namespace annulus {

extern const TransportInfo kTcpTransport;

std::unique_ptr<Transport> CreateTcpTransport(const TransportConfig& config);

}  // namespace annulus
