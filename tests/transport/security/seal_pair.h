// SealPair: two seals, and a carrier between them that sees and changes what is on the wire.
//
// Threads: one at a time.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>
#include <memory>
#include <vector>

#include "transport/security/seal.h"

namespace annulus {

using Bytes = std::vector<std::byte>;

inline constexpr Seal::Key kKey = {std::byte{1}, std::byte{2}, std::byte{3}};
inline constexpr Seal::Key kOtherKey = {std::byte{1}, std::byte{2}, std::byte{4}};

inline Bytes Pattern(size_t bytes, int seed = 1) {
  Bytes data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  return data;
}

// One end of a connection: a seal over a socket, and the other end of that socket, where a carrier stands.
class End {
 public:
  explicit End(HandshakeRole role, const Seal::Key& key = kKey, uint64_t records_per_key = Seal::kRecordsPerKey) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_), 0);
    EXPECT_TRUE(Seal::Create(role, key, records_per_key, &seal).ok());
  }
  ~End() {
    for (const int fd : fds_) {
      if (fd >= 0) ::close(fd);
    }
  }

  int fd() const { return fds_[0]; }
  int outside() const { return fds_[1]; }
  Status Shake() { return seal->Shake(fd()); }

  ssize_t Send(const Bytes& data) {
    const iovec piece = {const_cast<std::byte*>(data.data()), data.size()};
    return seal->Send(fd(), &piece, 1);
  }
  // What comes into room for `most` bytes. `*error`: 0, or the errno.
  Bytes Receive(size_t most, int* error) {
    Bytes data(most);
    const iovec piece = {data.data(), data.size()};
    const ssize_t got = seal->Receive(fd(), &piece, 1);
    *error = got < 0 ? errno : 0;
    data.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return data;
  }

  // What this end has put on the wire.
  Bytes TakeWire() const {
    Bytes wire(size_t{1} << 20);
    const ssize_t got = ::read(outside(), wire.data(), wire.size());
    wire.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return wire;
  }
  void PutWire(const Bytes& wire) const {
    EXPECT_EQ(::write(outside(), wire.data(), wire.size()), static_cast<ssize_t>(wire.size()));
  }
  void EndWire() {
    ::close(fds_[1]);
    fds_[1] = -1;
  }

  std::unique_ptr<Seal> seal;

 private:
  int fds_[2] = {-1, -1};
};

class SealPair : public ::testing::Test {
 protected:
  // Carries what either end sends until both handshakes have ended.
  void Shake() { Shake(&dialling_, &accepting_); }
  void Shake(End* dialling, End* accepting) {
    Status one = Status::WouldBlock();
    Status other = Status::WouldBlock();
    for (int turn = 0; turn < 10; ++turn) {
      if (one.code() == Code::kInProgress) one = dialling->Shake();
      accepting->PutWire(dialling->TakeWire());
      if (other.code() == Code::kInProgress) other = accepting->Shake();
      dialling->PutWire(accepting->TakeWire());
    }
    dialled_ = one;
    accepted_ = other;
  }

  // The records with which the dialling end sends each of these.
  std::vector<Bytes> Records(std::initializer_list<size_t> sizes) {
    std::vector<Bytes> records;
    for (const size_t bytes : sizes) {
      EXPECT_EQ(dialling_.Send(Pattern(bytes)), static_cast<ssize_t>(bytes));
      records.push_back(dialling_.TakeWire());
    }
    return records;
  }

  // Whether the accepting end takes nothing of `wire` and ends.
  bool Refuses(const Bytes& wire) {
    int error = 0;
    accepting_.PutWire(wire);
    return accepting_.Receive(100'000, &error).empty() && error == EBADMSG;
  }

  End dialling_{HandshakeRole::kInitiator};
  End accepting_{HandshakeRole::kAcceptor};
  Status dialled_;
  Status accepted_;
};

}  // namespace annulus
