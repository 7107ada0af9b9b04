// The simulated world: links made on first use with shapes drawn from the seed, faults as events, and control messages.
#include "transport/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace annulus {

SimWorld::SimWorld(const SimOptions& options)
    : options_(options),
      clock_(options.seed),
      ranks_(options.nranks),
      controls_(options.nranks),
      waiting_(options.nranks) {
  ANNULUS_CHECK(options.nranks > 0 && options.slots > 0 && options.slot_bytes > 0 && options.bytes_per_us > 0);
}

SimLinkShape SimWorld::ShapeOfNextLink() {
  const bool slots_only = options_.kind == SimKind::kSlots || (options_.kind == SimKind::kMixed && clock_.Chance(50));
  SimLinkShape shape;
  shape.limits.slot_bytes = options_.slot_bytes;
  shape.limits.send_slots = shape.limits.recv_slots = options_.slots;
  if (!slots_only) shape.limits.sends_from = shape.limits.lands_in = {MemoryKind::kHost};
  shape.limits.shares_memory = slots_only;
  shape.min_latency = options_.min_latency;
  shape.max_latency = clock_.Between(options_.min_latency, options_.max_latency);  // Some links are faster.
  shape.bytes_per_us = options_.bytes_per_us;
  shape.window_bytes = options_.window_bytes;
  // From less than a slice to all slots; always room for a few small slices.
  const int64_t most = static_cast<int64_t>(options_.slot_bytes) * options_.slots;
  if (shape.window_bytes == 0) shape.window_bytes = static_cast<size_t>(256 + clock_.Between(0, most));
  return shape;
}

SimLink* SimWorld::LinkOf(int a, int b, int channel) {
  ANNULUS_CHECK(a != b && std::min(a, b) >= 0 && std::max(a, b) < options_.nranks);
  const int low = std::min(a, b);
  const int high = std::max(a, b);
  std::unique_ptr<SimLink>& link = links_[{low, high, channel}];
  if (link == nullptr) {
    link = std::make_unique<SimLink>();
    link->clock = &clock_;
    link->shape = ShapeOfNextLink();
    const int ranks[2] = {low, high};
    for (int side = 0; side < 2; ++side) {
      link->ranks[side] = ranks[side];
      link->states[side] = &ranks_[ranks[side]];
    }
  }
  return link.get();
}

Endpoint* SimWorld::endpoint(int rank, int peer, int channel) {
  std::unique_ptr<SimEndpoint>& owned = owned_[{rank, peer, channel}];
  if (owned == nullptr) owned = MakeEndpoint(rank, peer, channel);
  return owned.get();
}

std::unique_ptr<SimEndpoint> SimWorld::MakeEndpoint(int rank, int peer, int channel) {
  return std::make_unique<SimEndpoint>(LinkOf(rank, peer, channel), rank < peer ? 0 : 1);
}

bool SimWorld::HasEndpoint(int rank, int peer, int channel) {
  return LinkOf(rank, peer, channel)->ends[rank < peer ? 0 : 1] != nullptr;
}

template <class Act>
void SimWorld::OnLinks(int a, int b, Nanoseconds at, Act act) {
  clock_.At(at, [this, low = std::min(a, b), high = std::max(a, b), act] {
    for (auto& [key, link] : links_) {
      if (std::get<0>(key) == low && std::get<1>(key) == high) act(link.get());
    }
  });
}

void SimWorld::CutLink(int a, int b, Nanoseconds at) {
  OnLinks(a, b, at, [](SimLink* link) { link->Cut(); });
}

void SimWorld::MuteLink(int a, int b, Nanoseconds at) {
  OnLinks(a, b, at, [](SimLink* link) { link->wires[0].cut = link->wires[1].cut = true; });
}

void SimWorld::CorruptLink(int from, int to, Nanoseconds at) {
  OnLinks(from, to, at, [side = from < to ? 0 : 1](SimLink* link) { link->wires[side].corrupt_next = true; });
}

void SimWorld::DelayLink(int a, int b, Nanoseconds at, Nanoseconds duration) {
  OnLinks(a, b, at, [duration](SimLink* link) {
    for (SimWire& wire : link->wires) {
      wire.last_arrival = std::max(wire.last_arrival, link->clock->now() + duration);
    }
  });
}

void SimWorld::KillRank(int rank, Nanoseconds at) {
  clock_.At(at, [this, rank] { Die(rank); });
}

void SimWorld::Die(int rank) {
  if (std::exchange(ranks_[rank].dead, true)) return;
  for (auto& [key, link] : links_) {
    for (SimEndpoint* end : link->ends) {
      if (end != nullptr && link->ranks[end == link->ends[0] ? 0 : 1] == rank) end->Die();
    }
  }
  for (int to = 0; to < options_.nranks; ++to) {
    if (to != rank) Carry(to, {.from = rank, .closed = true, .bytes = {}});
  }
}

void SimWorld::StopRank(int rank, Nanoseconds at) {
  clock_.At(at, [this, rank] { ranks_[rank].stopped = true; });
}

void SimWorld::ResumeRank(int rank, Nanoseconds at) {
  clock_.At(at, [this, rank] {
    ranks_[rank].stopped = false;
    for (const Notice& notice : std::exchange(waiting_[rank], {})) Deliver(rank, notice);
  });
}

void SimWorld::Send(int from, int to, std::string bytes) {
  if (!dead(from)) Carry(to, {.from = from, .closed = false, .bytes = std::move(bytes)});
}

void SimWorld::Carry(int to, Notice notice) {
  Nanoseconds& last = last_notice_[{notice.from, to}];
  last = std::max(last, clock_.now() + clock_.Between(options_.min_latency, options_.max_latency));
  clock_.At(last, [this, to, notice = std::move(notice)] { Deliver(to, notice); });
}

void SimWorld::Deliver(int to, const Notice& notice) {
  if (dead(to)) return;
  if (ranks_[to].stopped) {
    waiting_[to].push_back(notice);
    return;
  }
  const SimControl& control = controls_[to];
  if (notice.closed) {
    if (control.closed) control.closed(notice.from);
  } else if (control.message) {
    control.message(notice.from, notice.bytes);
  }
}

}  // namespace annulus
