// Addresses of byte streams: text to socket address and back, and name resolution. IPv4, IPv6, and UNIX sockets where a
// caller makes their endpoints itself; asio's generic stream protocol covers all three. The sockets are in
// transport/stream_socket.h, so that who only passes addresses on need not include asio's sockets.
//
// Threads: plain functions.
#pragma once

#include <sys/socket.h>

#include <asio/generic/basic_endpoint.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace asio::generic {
class stream_protocol;
}  // namespace asio::generic

namespace annulus {

using StreamEndpoint = asio::generic::basic_endpoint<asio::generic::stream_protocol>;

// Whether `endpoint` names an address; a default-made one does not.
inline bool HasAddress(const StreamEndpoint& endpoint) { return endpoint.size() > 0; }

// "10.0.0.2:41234" or "[fe80::1%eth0]:41234"; "a UNIX socket" for a UNIX socket.
std::string EndpointText(const StreamEndpoint& endpoint);

// The numeric address alone, "10.0.0.2" or "fe80::1%eth0"; "" when there is none.
std::string HostText(const StreamEndpoint& endpoint);

bool IsLoopback(const StreamEndpoint& endpoint);
// Whether it is the address that stands for all addresses of a host.
bool IsUnspecified(const StreamEndpoint& endpoint);

// 0 when there is none.
int PortOf(const StreamEndpoint& endpoint);

// Errors: kInvalidArgument  `host` is not a numeric IPv4 or IPv6 address.
Status MakeEndpoint(const std::string& host, int port, StreamEndpoint* endpoint);

// The inverse of EndpointText. Errors: kInvalidArgument.
Status ParseEndpoint(const std::string& text, StreamEndpoint* endpoint);

// Finds all endpoints of "host:port", names allowed, in the system's order of preference. Blocks up to `deadline`.
// Errors: kInvalidArgument, kTimeout, kSystem (the name is unknown).
Status Resolve(const std::string& address, Deadline deadline, std::vector<StreamEndpoint>* endpoints);

// Whether "host:port", which has been resolved to `endpoints`, has the name that only this host itself takes for a
// loopback address, as /etc/hosts of many distributions has it: others know it by another one. False for names of the
// loopback, such as localhost, and for numeric addresses.
bool IsOwnName(const std::string& address, const std::vector<StreamEndpoint>& endpoints);

}  // namespace annulus
