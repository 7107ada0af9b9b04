// SimLink: the connection between two simulated endpoints: two wires, one per direction, that carry pieces of slices
// in order.
//
// A piece leaves its sender's memory when its last byte is on the wire (so a sender that writes too early is
// detected), and arrives after a random latency, never before the piece ahead of it. Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "transport/sim/sim_clock.h"
#include "transport/transport.h"

namespace annulus {

class SimEndpoint;

// The state of a rank, as its links see it.
struct SimRank {
  bool dead = false;
  bool stopped = false;  // Like a process after SIGSTOP: only what it has launched continues.
};

// How a link behaves. Constant.
struct SimLinkShape {
  Limits limits;
  Nanoseconds min_latency = 0;
  Nanoseconds max_latency = 0;
  int64_t bytes_per_us = 1;
  size_t window_bytes = 0;  // Most bytes that the wire holds for a receiver that does not take them.
};

struct SimPiece {
  enum class Kind { kData, kEnd, kCorrupt };
  Kind kind = Kind::kData;
  Tag tag;
  uint32_t slice_bytes = 0;
  uint32_t offset = 0;
  int sender_slot = -1;  // Given back when the receiver releases the slice; -1: already given back on completion.
  std::vector<std::byte> data;
};

// One direction.
struct SimWire {
  std::deque<SimPiece> inbox;    // Arrived, not taken by the receiver.
  Nanoseconds free_at = 0;       // When the last launched piece has left its sender.
  Nanoseconds last_arrival = 0;  // No piece arrives before this.
  size_t held_bytes = 0;         // Bytes launched and not taken by the receiver, headers included.
  bool cut = false;              // Nothing more arrives.
  bool corrupt_next = false;     // The next piece arrives damaged.
};

struct SimLink {
  SimClock* clock = nullptr;
  SimLinkShape shape;
  int ranks[2] = {};
  const SimRank* states[2] = {};
  SimEndpoint* ends[2] = {};  // Null before an end is made and after it is destroyed.
  SimWire wires[2];           // wires[i] leads from end i to the other.

  // Puts `piece` on the wire of `side`; it arrives after everything sent before it.
  void Carry(int side, SimPiece piece);
  // Ends both directions now, as a reset does. What has arrived stays.
  void Cut();
};

}  // namespace annulus
