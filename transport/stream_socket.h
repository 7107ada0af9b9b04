// Sockets of byte streams, connected and listening ones.
//
// Threads: plain functions; those that take a Reactor, from the thread that drives it.
#pragma once

#include <asio/basic_socket_acceptor.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <functional>

#include "base/status.h"
#include "transport/address.h"
#include "transport/reactor.h"

namespace annulus {

using StreamProtocol = asio::generic::stream_protocol;
using StreamSocket = StreamProtocol::socket;
using StreamListener = asio::basic_socket_acceptor<StreamProtocol>;

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
