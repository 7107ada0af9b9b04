// CutLink: a link of two TCP sessions, whose connections a test cuts and makes again. What TcpRepair does over real
// sockets, and with time, it does at once.
//
// Threads: one.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/transport/tcp/cut_wire.h"
#include "transport/tcp/session/tcp_session.h"
#include "transport/transport.h"

namespace annulus {

struct CutLinkOptions {
  size_t slot_bytes = 0;
  int slots = 0;
  int lanes = 1;
  bool checksum = false;
  bool seals = false;
};

class CutLink {
 public:
  CutLink(asio::io_context* context, const CutLinkOptions& options, int first_rank, int second_rank);

  // The end of the first or the second rank; each once.
  std::unique_ptr<Endpoint> TakeEnd(int side) { return std::move(ends_[static_cast<size_t>(side)]); }

  int lanes() const { return options_.lanes; }
  size_t Pass(int lane, int from, size_t most) { return wires_[static_cast<size_t>(lane)]->Pass(from, most); }
  // Cuts the lane's connection, and has another one take its place. Expects no more to be sent again than was lost.
  // Returns how many bytes are.
  uint64_t Cut(int lane);

 private:
  asio::io_context* const context_;
  const CutLinkOptions options_;
  std::vector<std::unique_ptr<CutWire>> wires_;  // One for each lane.
  std::array<std::unique_ptr<Endpoint>, 2> ends_;
  std::array<TcpSession*, 2> sessions_;  // Theirs.
};

}  // namespace annulus
