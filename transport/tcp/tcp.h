// TCP transport: links over one or more sockets, between any two ranks that can reach each other over IPv4 or IPv6.
#pragma once

#include <memory>

#include "transport/transport_info.h"

namespace annulus {

extern const TransportInfo kTcpTransport;

std::unique_ptr<Transport> CreateTcpTransport(const TransportConfig& config);

}  // namespace annulus
