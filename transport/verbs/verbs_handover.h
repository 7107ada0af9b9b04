// VerbsHandover: sets up the queue pairs of a link over its authenticated stream, or finds that a device refuses to.
//
// Each end sends its greeting, connects its queue pair to the peer's once that one's has come, and says that it is
// ready. Nobody sends a slice before the peer is ready, since a device drops what comes for a queue pair that is not.
//
// Where another transport can link the two, an end whose device refuses memory, a queue pair or its connection says so
// in place of being ready, and so does its peer when it hears of it. Each end sends as many bytes in any case, and the
// link is made if both have said that they are ready. So both ends know the same when they are done, and none has sent
// a slice before.
//
// Threads: the one that drives the reactor.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/stream_socket.h"
#include "transport/transport.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/verbs_endpoint.h"

namespace annulus {

class VerbsHandover {
 public:
  // A link of `rank`. `socket` is non-blocking and outlives the handover.
  VerbsHandover(int rank, const LinkRequest& link, StreamSocket* socket)
      : rank_(rank), peer_(link.peer), may_refuse_(link.has_other), socket_(socket) {}

  // Opens the endpoint and greets the peer. Errors: kPeerLost; those of VerbsEndpoint::Open where the link has no other
  // transport, or this process has no descriptors left.
  Status Start(std::unique_ptr<VerbsEndpoint> endpoint);
  // In place of it: the device has refused what all links share. Returns `why` where the link has no other transport.
  Status Refuse(const Status& why);

  // Reads what the peer has sent, without blocking; done() returns whether that was everything. Errors: kProtocol,
  // kPeerLost, kMismatch; those of VerbsEndpoint::Connect where the link has no other transport.
  Status Continue();

  bool done() const { return in_bytes_ == in_.size(); }
  int peer() const { return peer_; }
  // Once done(): why the link is not made; "" when it is.
  const std::string& refusal() const { return refusal_; }
  // The endpoint, with its stream; once done() without a refusal.
  std::unique_ptr<VerbsEndpoint> TakeEndpoint();

 private:
  // Gives the endpoint up. *word becomes what the peer is told. Returns `why` when this must not be.
  Status GiveUp(const Status& why, VerbsStep refused, VerbsWord* word);
  Status OnGreeting();
  Status OnWord();
  Status Greet(const VerbsGreeting& greeting);
  Status Say(const VerbsWord& word);
  Status Write(const std::byte* data, size_t bytes);
  std::string PeerName() const { return "rank " + std::to_string(peer_); }
  Status Lost(const char* what, int os_errno) const;

  const int rank_;
  const int peer_;
  const bool may_refuse_;
  StreamSocket* const socket_;
  std::unique_ptr<VerbsEndpoint> endpoint_;  // Null once the link has been refused.
  std::string refusal_;
  std::array<std::byte, VerbsGreeting::kBytes + VerbsWord::kBytes> in_{};
  size_t in_bytes_ = 0;
};

}  // namespace annulus
