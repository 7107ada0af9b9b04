// ShmHandover: passes a link's memory file from one end to the other over their UNIX sockets.
//
// After the handshake the lower rank sends one byte with the file attached (SCM_RIGHTS); the higher rank maps the file
// and answers with one byte. Each side reads exactly these bytes, because what follows are bells.
//
// Linux passes no file while the user's processes on the host have sent more files than `ulimit -n` that nobody has
// received yet, as when many ranks connect at once. So a rank receives what others have sent before it tries again.
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

  // Creates the mapping and sends it unless must_send() afterwards, if that is this end's part. Errors:
  // kInvalidArgument, kSystem, kPeerLost.
  Status Start(int slots, size_t slot_bytes);

  // Sends what is still to be sent and reads what the peer has sent, without blocking; done() returns whether that was
  // everything. Errors: kProtocol, kPeerLost, kSystem.
  Status Continue();

  bool done() const { return done_; }
  // The kernel passes no file for now. Nothing tells when it does: Continue asks again.
  bool must_send() const { return refused_ != 0; }
  // What to say when the time is over before it is done.
  Status Late() const;
  std::unique_ptr<ShmMapping> TakeMapping() { return std::move(mapping_); }

 private:
  Status SendFile();
  Status ReceiveFile(int* fd);
  // The peer has gone, or this rank's system has refused.
  Status Failed(const char* what, int os_errno) const;
  Status Lost(const char* what, int os_errno) const;
  Status Refuse(const char* what) const;

  const int rank_;
  const int peer_;
  const bool creates_;  // This end is the lower rank.
  StreamSocket* const socket_;
  bool done_ = false;
  int refused_ = 0;  // Errno with which the kernel refused to pass the file for now; 0: it did not.
  std::unique_ptr<ShmMapping> mapping_;
};

}  // namespace annulus
