#include "tests/transport/tcp/cut_wire.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/status.h"
#include "transport/security/seal.h"

namespace annulus {

CutWire::CutWire(asio::io_context* context, bool seals) {
  for (int side = 0; side < 2; ++side) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const int room = 1 << 20;  // As much as the system permits.
    for (const int fd : fds) EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), 0);
    sockets.emplace_back(*context);
    sockets.back().socket.assign(StreamProtocol(AF_UNIX, 0), fds[0]);
    network_[side] = fds[1];
  }
  if (seals) SealBoth();
}

CutWire::~CutWire() {
  for (const int fd : network_) close(fd);
}

size_t CutWire::Pass(int from, size_t most) {
  std::byte bytes[512];
  const ssize_t got = recv(network_[from], bytes, std::min(most, sizeof bytes), 0);
  if (got == 0 && most > 0) shutdown(network_[1 - from], SHUT_WR);
  if (got <= 0) return 0;
  EXPECT_EQ(send(network_[1 - from], bytes, static_cast<size_t>(got), 0), got);
  return static_cast<size_t>(got);
}

uint64_t CutWire::Kept(int from) const {
  int bytes = 0;
  EXPECT_EQ(ioctl(network_[from], FIONREAD, &bytes), 0);
  return static_cast<uint64_t>(bytes);
}

void CutWire::SealBoth() {
  Status status[2] = {Status::WouldBlock(), Status::WouldBlock()};
  EXPECT_TRUE(Seal::Create(HandshakeRole::kInitiator, {}, &sockets[0].seal).ok());
  EXPECT_TRUE(Seal::Create(HandshakeRole::kAcceptor, {}, &sockets[1].seal).ok());
  for (int turn = 0; turn < 8; ++turn) {
    const size_t side = static_cast<size_t>(turn % 2);
    if (!status[side].ok()) status[side] = sockets[side].seal->Shake(sockets[side].socket.native_handle());
    while (Pass(turn % 2, SIZE_MAX) > 0) {
    }
  }
  EXPECT_TRUE(status[0].ok() && status[1].ok());
}

}  // namespace annulus
