#include "transport/reserved_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <memory>

namespace annulus {
namespace {

// A new socket of the family that listens at a port of the address. Returns -1, with errno set, on failure.
int ListenAt(const sockaddr* address, socklen_t bytes) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  // The most that the system allows: all ranks may dial before the first accept.
  if (bind(fd, address, bytes) == 0 && listen(fd, std::numeric_limits<int>::max()) == 0) return fd;
  const int cause = errno;
  close(fd);
  errno = cause;
  return -1;
}

int ListenEverywhere(int family) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  return family == AF_INET6 ? ListenAt(reinterpret_cast<const sockaddr*>(&v6), sizeof v6)
                            : ListenAt(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

ReservedPort::~ReservedPort() {
  if (socket_ >= 0) close(socket_);
}

Status ReservedPort::Reserve(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const bool numeric = getaddrinfo(host.c_str(), "0", &hints, &found) == 0;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* list) {
    if (list != nullptr) freeaddrinfo(list);
  });
  if (numeric) socket_ = ListenAt(found->ai_addr, found->ai_addrlen);
  if (!numeric || (socket_ < 0 && errno == EADDRNOTAVAIL)) {
    socket_ = ListenEverywhere(numeric ? found->ai_family : AF_INET);
  }
  if (socket_ < 0) return Status::System("cannot reserve a port of " + host + " for the rendezvous", errno);
  port_ = PortOf(socket_);
  return {};
}

}  // namespace annulus
