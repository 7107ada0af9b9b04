// Connector: establishes many authenticated streams at once, by dialling, by accepting, or both.
//
// Used for the rendezvous (rank 0 accepts one stream from every rank), for TCP links and, over UNIX sockets, for shared
// memory links. Dials are retried until the deadline, so the order in which ranks start does not matter. Whoever
// connects without proof is a stranger: dropped, counted and logged once per reason, without delaying anybody.
//
// Threads: the one that drives the reactor.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/reactor.h"
#include "transport/security/auth.h"

namespace annulus {

// One stream, from this rank's view: with whom, and which of the streams with that rank.
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
  Hello hello;  // This rank's: purpose, job_id, nranks, rank. The rest is filled in for each stream.
  std::string key;
  std::vector<DialRequest> dials;
  std::vector<StreamId> expected;         // To be accepted from `listener`.
  StreamListener* listener = nullptr;     // Stays the caller's, open, with nothing pending.
  StreamEndpoint source;                  // Where dials come from; without address: the system's choice. Its port is 0.
  std::function<void(int fd)> configure;  // If any, sees each socket before it dials.
  Deadline deadline = kNoDeadline;
  std::function<Status()>
      give_up;  // If any, asked whenever the reactor wakes; a failure ends the call with that status.
  Nanoseconds stranger_limit = 3 * kSecond;  // A connecting peer that takes longer to prove itself is dropped.
};

struct Stream {
  StreamId id;
  uint16_t session_minor = 0;  // The wire's minor version for this stream.
  StreamSocket socket;         // Connected, authenticated, non-blocking; nothing was read past the handshake.
};

// Establishes all streams of `plan`: first those of plan.dials, in order, then those of plan.expected, in order.
// Blocks up to the deadline. On errors `streams` is untouched and every connection is closed.
//
// Errors: kTimeout   names the missing ranks and what was last heard of them.
//         kAuth      a dialled peer holds another key.
//         kProtocol  a dialled peer is of another version, job, size, or no rank at all.
//         kSystem    no sockets, or an address that cannot be used.
//         or what give_up returned.
Status EstablishStreams(Reactor* reactor, const ConnectPlan& plan, std::vector<Stream>* streams);

}  // namespace annulus
