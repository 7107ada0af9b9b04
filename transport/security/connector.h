// Connector: establishes many authenticated streams at once, by dialling, by accepting, or both.
//
// Used for the rendezvous (rank 0 accepts one stream from every rank), for TCP links and, over UNIX sockets, for shared
// memory links. Dials are retried until the deadline, so the order in which ranks start does not matter. A client that
// connects without proof is a stranger: it is dropped, counted and logged once per reason, without delaying anybody.
//
// Threads: the one that drives the reactor.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/secret.h"
#include "base/status.h"
#include "transport/reactor.h"
#include "transport/security/auth.h"
#include "transport/security/seal.h"
#include "transport/stream_socket.h"

namespace annulus {

// One stream from this rank's view: the peer, and which of the streams with that peer.
struct StreamId {
  uint32_t rank = 0;  // The peer.
  uint16_t channel = 0;
  uint16_t lane = 0;
  auto operator<=>(const StreamId&) const = default;
};

struct DialRequest {
  StreamId id;
  std::vector<StreamEndpoint> endpoints;  // Tried in turn.
};

struct ConnectPlan {
  Hello hello;  // This rank's purpose, identity, nranks and rank. The rest is filled in for each stream.
  Secret key;
  std::vector<DialRequest> dials;
  std::vector<StreamId> expected;      // Streams to accept from `listener`.
  StreamListener* listener = nullptr;  // Stays the caller's, open, with nothing pending.
  // Source address of dials, with port 0; without an address the system chooses.
  StreamEndpoint source;
  std::function<void(int fd)> configure;  // If any, called for each socket before it dials.
  Deadline deadline = kNoDeadline;
  // If any, called whenever the reactor wakes up; a failure ends the call with that status.
  std::function<Status()> give_up;
  // A dial that is not connected after this time begins anew, perhaps with the next address; 0: never. One that is
  // connected waits for its answer until the deadline: the peer may listen, and accept much later.
  Nanoseconds dial_limit = 0;
  // A connecting peer that takes longer than this to prove itself is dropped.
  Nanoseconds stranger_limit = 3 * kSecond;
};

struct Stream {
  StreamId id;
  uint16_t session_minor = 0;  // Minor version of the wire protocol on this stream.
  StreamSocket socket;         // Connected, authenticated, non-blocking; nothing was read past the handshake.
  std::unique_ptr<Seal> seal;  // Encrypts all that goes through the socket; null: it goes in clear.
};

// During a handshake the dialling side mostly waits. When something on the way has forgotten the connection, or the
// path has ended, these probes find out within 3 s, and it dials again. The kernel of a peer that is busy or stopped
// answers them. Whoever takes over the socket sets its own. Failures are harmless.
void ProbePath(int fd);

// Establishes all streams of `plan`: first those of plan.dials, in order, then those of plan.expected, in order.
// Blocks up to the deadline. On errors `streams` is untouched and every connection is closed.
//
// Errors: kTimeout   names the missing ranks and what was last heard of them.
//         kAuth      a dialled peer holds another key.
//         kProtocol  a dialled peer has another version, job or size.
//         kMismatch  a dialled peer belongs to another run.
//         kSystem    no sockets, or an address that cannot be used.
//         or what give_up returned.
Status EstablishStreams(Reactor* reactor, const ConnectPlan& plan, std::vector<Stream>* streams);

}  // namespace annulus
