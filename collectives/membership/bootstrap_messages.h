// The messages of the rendezvous (docs/wire_protocol.md, "Rendezvous and control") and what both of its sides agree on.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control_wire.h"
#include "collectives/membership/bootstrap.h"
#include "transport/security/auth.h"

namespace annulus {

// rank -> rank 0.
struct JoinMessage {
  uint32_t nranks = 0;
  Nanoseconds patience = 0;  // How long this rank will still wait: rank 0 gives its answer before.
  std::string blob;
};

// rank 0 -> rank.
struct TableMessage {
  uint64_t job_id = 0;
  std::vector<std::string> blobs;  // By rank.
};

constexpr size_t kMostJoinBytes = kMostBlobBytes + 64;
constexpr size_t MostTableBytes(int nranks) { return static_cast<size_t>(nranks) * (kMostBlobBytes + 4) + 64; }

std::string Encode(const JoinMessage& message);
std::string Encode(const TableMessage& message);
// False when the bytes are no such message.
bool Decode(std::span<const std::byte> body, JoinMessage* message);
bool Decode(std::span<const std::byte> body, int nranks, TableMessage* message);

// The hello of a rendezvous. The job's id is not known yet; and the number of ranks is left open, so that ranks which
// were started with different ones get past the proof, and the difference can be named to all.
Hello RendezvousHello(int rank);

// "30.0 s".
std::string SecondsText(Nanoseconds duration);

// The numeric address of this end of the connection `fd`.
std::string LocalHostOf(int fd);

}  // namespace annulus
