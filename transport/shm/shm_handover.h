// ShmHandover: passes a link's memory file from one end to the other over their UNIX sockets.
//
// After the handshake the lower rank sends one byte with the file attached (SCM_RIGHTS); the higher rank maps the file
// and answers with one byte. Each side reads exactly these bytes, because what follows are bells.
//
// Threads: the one that drives the reactor.
#pragma once

#include <memory>
#include <utility>

#include "base/status.h"
#include "transport/shm/shm_mapping.h"
#include "transport/stream_socket.h"

namespace annulus {

class ShmHandover {
 public:
  // Hands over the mapping of the link from `rank`, this end, to `peer`. `socket` is non-blocking and outlives the
  // handover.
  ShmHandover(int rank, int peer, StreamSocket* socket)
      : rank_(rank), peer_(peer), creates_(rank < peer), socket_(socket) {}

  // Creates and sends the mapping, if that is this end's part. Errors: kInvalidArgument, kSystem, kPeerLost.
  Status Start(int slots, size_t slot_bytes);

  // Reads what the peer has sent, without blocking; done() returns whether that was everything.
  // Errors: kProtocol, kPeerLost, kSystem.
  Status Continue();

  bool done() const { return done_; }
  int peer() const { return peer_; }
  std::unique_ptr<ShmMapping> TakeMapping() { return std::move(mapping_); }

 private:
  Status ReceiveFile(int* fd);
  Status Lost(const char* what, int os_errno) const;
  Status Refuse(const char* what) const;

  const int rank_;
  const int peer_;
  const bool creates_;  // This end is the lower rank.
  StreamSocket* const socket_;
  bool done_ = false;
  std::unique_ptr<ShmMapping> mapping_;
};

}  // namespace annulus
