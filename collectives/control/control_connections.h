// ControlConnections: the sockets that bootstrap created and authenticated, to be passed to the control thread; and the
// door for ranks whose connection breaks.
//
// Threads: a value; one at a time.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "transport/address.h"
#include "transport/security/sealed_fd.h"

namespace annulus {

// A connected TCP socket and its two addresses, as they were while it was connected.
struct ControlConnection {
  int fd = -1;  // -1: none.
  StreamEndpoint local;
  StreamEndpoint peer;
  bool resumes = false;  // It takes the place of one that broke.
  std::unique_ptr<Seal> seal = nullptr;

  SealedFd TakeFd() { return {std::exchange(fd, -1), std::move(seal)}; }
};

// Where rank 0 listens for ranks whose control connection broke, as long as the communicator lives.
struct ControlDoorPlace {
  int listener = -1;   // On rank 0; -1: none, and on other ranks.
  int port = 0;        // Port on rank 0's host; 0: nobody can come back.
  std::string ticket;  // Random: who has it is a rank of this communicator. Part of the key.
};

class ControlConnections {
 public:
  ControlConnections() = default;
  ControlConnections(ControlConnections&& other) noexcept
      : connections_(std::exchange(other.connections_, {})), door_(std::exchange(other.door_, {})) {}
  ControlConnections& operator=(ControlConnections&& other) noexcept {
    std::swap(connections_, other.connections_);
    std::swap(door_, other.door_);
    return *this;
  }
  ~ControlConnections() {
    for (const auto& [rank, connection] : connections_) {
      if (connection.fd >= 0) ::close(connection.fd);
    }
    if (door_.listener >= 0) ::close(door_.listener);
  }

  // Takes over the listener.
  void SetDoor(ControlDoorPlace door) { std::swap(door_, door); }
  const ControlDoorPlace& door() const { return door_; }
  // Releases the listener, which the caller must close; -1 when there is none.
  int TakeListener() { return std::exchange(door_.listener, -1); }

  // Takes over `fd`, a TCP socket connected to `rank`.
  void Put(int rank, int fd) { Put(rank, EndsOf(fd)); }
  // Without a descriptor: a connection that broke, and may be made again.
  void Put(int rank, ControlConnection connection) {
    const ControlConnection before = Take(rank);
    if (before.fd >= 0) ::close(before.fd);
    if (connection.fd >= 0 || HasAddress(connection.peer)) connections_[rank] = std::move(connection);
  }

  static ControlConnection EndsOf(int fd) { return {fd, AddressOf(fd, ::getsockname), AddressOf(fd, ::getpeername)}; }

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
  ControlDoorPlace door_;
};

}  // namespace annulus
