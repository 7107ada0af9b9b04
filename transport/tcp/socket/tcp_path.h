// What the path of a connection is like: how far away the other end is, and whether it answers.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace annulus {

// The smallest round trip time that the socket has seen, in microseconds; nothing when the kernel does not report it.
std::optional<uint32_t> LeastRoundTripUs(int fd);

struct PathAnswers {
  int unanswered = 0;  // Packets in a row that ask for an answer and got none: retransmissions, or probes.
  // Where something was sent that is not acknowledged: how many bytes are. Nothing otherwise, and when the kernel does
  // not report it.
  std::optional<uint64_t> owes_after;
  Nanoseconds quiet = 0;       // Since the last packet from the peer.
  Nanoseconds round_trip = 0;  // The least that the socket has seen; 0 when the kernel does not report it.
};

// Zeros when the kernel does not report it.
PathAnswers PathAnswersOf(int fd);

// Whether the kernel has dropped the connection, so that nothing more gets out. False when it does not say.
bool IsDropped(int fd);

// Ends the connection. What has arrived can still be read; from now on the kernel takes nothing more, and so
// acknowledges nothing more.
void StopTaking(int fd);

}  // namespace annulus
