// Wires of the simulation: latency, order, cuts and damage.
#include "transport/sim/sim_link.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace annulus {

void SimLink::Carry(int side, SimPiece piece) {
  SimWire& wire = wires[side];
  const Nanoseconds latency = clock->Between(shape.min_latency, shape.max_latency);
  wire.last_arrival = std::max(wire.last_arrival, clock->now() + latency);
  auto moved = std::make_shared<SimPiece>(std::move(piece));
  clock->At(wire.last_arrival, [&wire, moved] {
    if (wire.cut) return;
    if (wire.corrupt_next && moved->kind == SimPiece::Kind::kData) {
      moved->kind = SimPiece::Kind::kCorrupt;
      wire.corrupt_next = false;
    }
    wire.inbox.push_back(std::move(*moved));
  });
}

void SimLink::Cut() {
  for (SimWire& wire : wires) {
    wire.cut = true;
    wire.inbox.push_back({.kind = SimPiece::Kind::kEnd, .tag = {}, .data = {}});
  }
}

}  // namespace annulus
