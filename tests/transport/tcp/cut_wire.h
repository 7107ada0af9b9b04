// CutWire: one connection of a link, through a network that is the test: it passes on as many bytes as it is told to,
// and what it has not passed on is lost with it. Sealed connections take some milliseconds to make.
//
// Threads: one.
#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/security/sealed_socket.h"

namespace annulus {

class CutWire {
 public:
  CutWire(asio::io_context* context, bool seals);
  ~CutWire();
  CutWire(const CutWire&) = delete;
  CutWire& operator=(const CutWire&) = delete;

  // Passes on up to `most` bytes from that side to the other, or the end behind them. Returns how many.
  size_t Pass(int from, size_t most);
  // Bytes of that side that were not passed on.
  uint64_t Kept(int from) const;
  // The network's end of that side.
  int network(int from) const { return network_[from]; }

  std::vector<SealedSocket> sockets;  // The sockets of sides 0 and 1.

 private:
  void SealBoth();

  int network_[2];
};

}  // namespace annulus
