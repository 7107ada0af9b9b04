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
#include "base/launchers.h"
#include "collectives/control/control_wire.h"
#include "collectives/membership/bootstrap.h"
#include "transport/address.h"
#include "transport/security/auth.h"

namespace annulus {

// rank -> rank 0.
struct JoinMessage {
  uint32_t nranks = 0;
  uint64_t process = 0;      // Random: who comes again with it, because its connection broke, is the same process.
  Nanoseconds patience = 0;  // Time that this rank will still wait; rank 0 answers before its end.
  std::string library_file;  // At most kMostFileBytes.
  std::string blob;
};

// rank 0 -> rank. Rank 0 sends the table of all ranks to each of them: in bytes, the square of the number of ranks, a
// few hundred times, or 0.4 GB for 1,024 ranks.
struct TableMessage {
  uint64_t job_id = 0;
  uint16_t door_port = 0;          // Where rank 0 listens for ranks whose connection breaks from now on; 0: nowhere.
  std::string ticket;              // Part of that door's key; kTicketBytes long.
  std::vector<std::string> blobs;  // By rank.
};

constexpr size_t kMostFileBytes = 512;
constexpr size_t kTicketBytes = 32;
constexpr size_t kMostJoinBytes = kMostBlobBytes + kMostFileBytes + 64;
constexpr size_t MostTableBytes(int nranks) { return static_cast<size_t>(nranks) * (kMostBlobBytes + 4) + 128; }
static_assert(MostTableBytes(JobPlace::kMostRanks) <= UINT32_MAX, "the length of a message is a u32");

std::string Encode(const JoinMessage& message);
std::string Encode(const TableMessage& message);
// Returns false when the bytes are not such a message.
bool Decode(std::span<const std::byte> body, JoinMessage* message);
bool Decode(std::span<const std::byte> body, int nranks, TableMessage* message);

// Hello of a rendezvous. The number of ranks is left open, so that ranks started with different numbers pass the proof,
// and all can be told the difference.
Hello RendezvousHello(const BootstrapConfig& config);

// At most 256 bytes from the kernel's generator.
std::string RandomBytes(size_t bytes);
uint64_t RandomNumber();

// "30.0 s".
std::string SecondsText(Nanoseconds duration);

// The numeric address in `endpoint`, this end of a connection.
std::string LocalHostOf(const StreamEndpoint& endpoint);

}  // namespace annulus
