// TCP transport: links over one or more sockets, between any two ranks that can reach each other over IPv4 or IPv6.
#pragma once

#include <memory>

#include "base/status.h"
#include "transport/transport_info.h"

namespace annulus {

extern const TransportInfo kTcpTransport;

std::unique_ptr<Transport> CreateTcpTransport(const TransportConfig& config);

// As TransportInfo::over_stream. Slices arrive in slots, wherever they may land. When the connection breaks, the link
// ends.
Status TcpOverStream(const TransportConfig& config, const LinkRequest& link, LinkStream stream,
                     std::unique_ptr<Endpoint>* endpoint);

}  // namespace annulus
