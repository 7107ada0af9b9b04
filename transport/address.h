// Addresses of byte streams: text to socket address and back, name resolution, listening sockets. IPv4, IPv6, and UNIX
// sockets where a caller makes their endpoints itself; asio's generic stream protocol covers all three.
//
// Threads: plain functions; those that take a Reactor, from the thread that drives it.
#pragma once

#include <asio/basic_socket_acceptor.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/reactor.h"

namespace annulus {

using StreamProtocol = asio::generic::stream_protocol;
using StreamEndpoint = StreamProtocol::endpoint;
using StreamSocket = StreamProtocol::socket;
using StreamListener = asio::basic_socket_acceptor<StreamProtocol>;

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

// Opens a non-blocking TCP or UNIX socket, not inherited by programs that this process starts. Returns 0 or the errno.
int OpenSocket(int family, StreamSocket* socket);
// The same for a listener.
int OpenSocket(int family, StreamListener* listener);

// Listens at `endpoint`. Port 0 takes a free port; listener->local_endpoint() returns it. `configure`, if any, gets the
// socket before it is bound; accepted sockets inherit its options.
// Errors: kSystem with errno, such as EADDRINUSE.
Status Listen(Reactor* reactor, const StreamEndpoint& endpoint, const std::function<void(int fd)>& configure,
              StreamListener* listener);

}  // namespace annulus
