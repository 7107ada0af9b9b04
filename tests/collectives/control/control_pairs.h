// ConnectRanks: the connections that bootstrap would make, for tests that need no bootstrap.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/sockets/control_door.h"
#include "transport/security/seal.h"

namespace annulus {

// Two connected TCP sockets over loopback, the first for rank 0.
inline std::pair<int, int> ConnectPair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ANNULUS_CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) == 0 && ::listen(listener, 1) == 0);
  ANNULUS_CHECK(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  const int dialled = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ANNULUS_CHECK(::connect(dialled, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  const int accepted = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ANNULUS_CHECK(accepted >= 0);
  ::close(listener);
  return {accepted, dialled};
}

// Seals both ends of a connection, rank 0's first. `carry` takes what either has said to the other, if the test stands
// between them.
template <class Carry>
std::pair<ControlConnection, ControlConnection> SealEnds(int judge, int member, Carry carry) {
  std::pair<ControlConnection, ControlConnection> ends = {ControlConnections::EndsOf(judge),
                                                          ControlConnections::EndsOf(member)};
  ANNULUS_CHECK(Seal::Create(HandshakeRole::kAcceptor, {}, &ends.first.seal).ok());
  ANNULUS_CHECK(Seal::Create(HandshakeRole::kInitiator, {}, &ends.second.seal).ok());
  Status of_judge = Status::WouldBlock();
  Status of_member = Status::WouldBlock();
  for (const Deadline deadline = DeadlineAfter(10 * kSecond); !of_judge.ok() || !of_member.ok(); carry()) {
    if (!of_member.ok()) of_member = ends.second.seal->Shake(member);
    carry();
    if (!of_judge.ok()) of_judge = ends.first.seal->Shake(judge);
    ANNULUS_CHECK(Now() < deadline);
  }
  return ends;
}

// By rank.
inline std::vector<ControlConnections> ConnectRanks(int nranks, bool seals = false) {
  std::vector<ControlConnections> connections(nranks);
  for (int rank = 1; rank < nranks; ++rank) {
    const auto [judge, member] = ConnectPair();
    if (seals) {
      auto [of_judge, of_member] = SealEnds(judge, member, [] {});
      connections[0].Put(rank, std::move(of_judge));
      connections[rank].Put(0, std::move(of_member));
    } else {
      connections[0].Put(rank, judge);
      connections[rank].Put(0, member);
    }
  }
  ControlDoorPlace door;
  int listener = -1;
  ANNULUS_CHECK(ListenForReturns("127.0.0.1", &listener, &door.port).ok());
  // The test's own copy: ranks may be forked children, which close what the library has opened.
  door.listener = ::fcntl(listener, F_DUPFD_CLOEXEC, 0);
  ANNULUS_CHECK(door.listener >= 0);
  ::close(listener);
  for (int rank = 1; rank < nranks; ++rank) connections[rank].SetDoor({-1, door.port, door.ticket});
  connections[0].SetDoor(std::move(door));
  return connections;
}

// Ends a process that had read everything: its kernel then ends its connections in an orderly way.
inline void EndOrderly(ControlConnections* connections) {
  constexpr int kMostRanks = 16;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const int fd = connections->Take(rank).fd;
    char buffer[256];
    while (fd >= 0 && ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
    }
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace annulus
