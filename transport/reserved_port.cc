#include "transport/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "transport/address.h"

namespace annulus {

ReservedPort::~ReservedPort() {
  if (socket_ >= 0) close(socket_);
}

Status ReservedPort::Reserve(const std::string& host) {
  StreamEndpoint any_port;
  ANNULUS_RETURN_IF_ERROR(MakeEndpoint(host, 0, &any_port));
  socket_ = socket(any_port.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  if (socket_ < 0 || setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(socket_, any_port.data(), static_cast<socklen_t>(any_port.size())) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {
    return Status::System("cannot reserve a port of " + host, errno);
  }
  const in_port_t port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  port_ = ntohs(port);
  return Status();
}

}  // namespace annulus
