#include "transport/stream_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/v6_only.hpp>
#include <cerrno>
#include <string>

#include "transport/forked_child.h"

namespace annulus {
namespace {

// Close-on-exec from the first moment: another thread may start a program at any time.
template <class Socket>
int OpenAny(int family, Socket* socket) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  asio::error_code error;
  socket->assign(StreamProtocol(family, 0), fd, error);
  if (error) ::close(fd);
  if (!error) CloseInForkedChildren(fd);
  if (!error) socket->non_blocking(true, error);  // Also tells asio.
  return error.value();
}

}  // namespace

int OpenSocket(int family, StreamSocket* socket) { return OpenAny(family, socket); }
int OpenSocket(int family, StreamListener* listener) { return OpenAny(family, listener); }

Status Listen(Reactor* reactor, const StreamEndpoint& endpoint, const std::function<void(int fd)>& configure,
              StreamListener* listener) {
  asio::error_code error;
  auto failed = [&](const char* what) {
    const int os_errno = error.value();
    *listener = StreamListener(reactor->context());
    return Status::System(std::string(what) + " at " + EndpointText(endpoint), os_errno);
  };
  *listener = StreamListener(reactor->context());
  error.assign(OpenSocket(endpoint.data()->sa_family, listener), asio::system_category());
  if (error) return failed("cannot open a socket to listen");
  // A fixed port must be available again at once after a job. Not for port 0: two sockets could get the same one.
  if (PortOf(endpoint) != 0) listener->set_option(StreamListener::reuse_address(true), error);
  // The wildcard address serves both families; a specific address only its own.
  if (endpoint.data()->sa_family == AF_INET6) listener->set_option(asio::ip::v6_only(!IsUnspecified(endpoint)), error);
  if (configure) configure(listener->native_handle());
  listener->bind(endpoint, error);
  if (error) return failed("cannot bind a socket to listen");
  // As many waiting connections as the system allows: all ranks may dial before the first accept.
  listener->listen(asio::socket_base::max_listen_connections, error);
  if (error) return failed("cannot listen");
  return Status();
}

}  // namespace annulus
