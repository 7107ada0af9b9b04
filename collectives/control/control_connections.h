// ControlConnections: the sockets that bootstrap created and authenticated, to be passed to the control thread.
//
// Threads: a value; one at a time.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "transport/address.h"

namespace annulus {

// A connected TCP socket and its two addresses, as they were while it was connected.
struct ControlConnection {
  int fd = -1;  // -1: none.
  StreamEndpoint local;
  StreamEndpoint peer;
};

class ControlConnections {
 public:
  ControlConnections() = default;
  ControlConnections(ControlConnections&& other) noexcept : connections_(std::exchange(other.connections_, {})) {}
  ControlConnections& operator=(ControlConnections&& other) noexcept {
    std::swap(connections_, other.connections_);
    return *this;
  }
  ~ControlConnections() {
    for (const auto& [rank, connection] : connections_) ::close(connection.fd);
  }

  // Takes over `fd`, a TCP socket connected to `rank`.
  void Put(int rank, int fd) {
    const ControlConnection before = Take(rank);
    if (before.fd >= 0) ::close(before.fd);
    if (fd >= 0) connections_[rank] = {fd, AddressOf(fd, ::getsockname), AddressOf(fd, ::getpeername)};
  }

  // Releases the socket to `rank`, which the caller must close. None when there is none.
  ControlConnection Take(int rank) {
    const auto found = connections_.find(rank);
    if (found == connections_.end()) return {};
    ControlConnection taken = std::move(found->second);
    connections_.erase(found);
    return taken;
  }

 private:
  // No address when the socket has none.
  static StreamEndpoint AddressOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
    StreamEndpoint address;
    socklen_t bytes = static_cast<socklen_t>(address.capacity());
    if (get(fd, address.data(), &bytes) != 0) return {};
    address.resize(bytes);
    return address;
  }

  std::map<int, ControlConnection> connections_;  // By rank.
};

}  // namespace annulus
