#include "collectives/engine/memory_budget.h"

#include <algorithm>
#include <string>

#include "collectives/algorithms/message/message.h"
#include "collectives/algorithms/table.h"
#include "collectives/engine/engine.h"

namespace annulus {
namespace {

// Bytes per link beyond those of its transport: its share of the communicator and of calls and messages in progress. A
// lone rank has that of one link.
constexpr size_t kLinkBytes = 16 * 1024;
constexpr size_t kMostLevelPeers = 4;  // On a grid of hosts, two on each level.

// The number of hosts for a grid of that many ranks, if there is one.
int HostsOfGrid(int nranks) {
  int hosts = 2;
  while (hosts < nranks && nranks % hosts != 0) ++hosts;
  return hosts;
}

Topology Dealt(int nranks, int hosts) {
  std::vector<int> host_of(nranks);
  for (int rank = 0; rank < nranks; ++rank) host_of[rank] = rank % hosts;
  return Topology(nranks, host_of);
}

// Sizes from the fastest to the smallest.
struct Size {
  int slots;
  size_t slice_bytes;
};
constexpr Size kSizes[] = {{8, 256 * 1024}, {8, 128 * 1024}, {8, 64 * 1024},
                           {4, 64 * 1024},  {4, 32 * 1024},  {4, 16 * 1024}};

// Properties of at least one allowed transport.
struct WorstLink {
  size_t bytes = 0;
  bool by_system_calls = false;
  bool between_hosts = false;
};

WorstLink WorstOf(const PossibleLinks& possible, const PlanSettings& settings) {
  TransportConfig config;
  config.slot_bytes = SlotBytes(settings);
  config.slots = settings.slots;
  config.settings = possible.settings;
  WorstLink worst;
  for (const TransportInfo* each : possible.transports) {
    if (!Allows(possible.allowed, *each)) continue;
    worst.bytes = std::max(worst.bytes, LinkMemoryBytes(possible.transports, *each, config));
    worst.by_system_calls |= each->by_system_calls;
    worst.between_hosts |= !each->same_host_only;
  }
  return worst;
}

}  // namespace

size_t MostMemory(int nranks, const PlanSettings& settings, const PossibleLinks& possible) {
  const WorstLink worst = WorstOf(possible, settings);
  // The layout is not known yet: ranks may turn out to be on one host, or to lie on a grid of hosts.
  std::vector<Topology> layouts = {Topology(nranks)};
  if (worst.between_hosts) layouts.push_back(Dealt(nranks, HostsOfGrid(nranks)));
  const size_t level_links = worst.between_hosts && !HasMesh(nranks, settings) ? kMostLevelPeers : 0;
  size_t links = 0;
  size_t engine = 0;
  for (Topology& layout : layouts) {
    layout.by_system_calls = worst.by_system_calls;
    const AlgorithmJob job{settings, layout};
    links = std::max(links, LinksNeeded(0, job).size() + level_links);
    engine = std::max(engine, Engine::MemoryBytes(job));
  }
  const size_t held = nranks > 1 && HasMesh(nranks, settings) ? HeldBytes(nranks, settings) : 0;
  return engine + held + links * (worst.bytes + kLinkBytes) + (links == 0 ? kLinkBytes : 0);
}

Status FitMemory(int nranks, size_t budget, const PossibleLinks& possible, PlanSettings* settings) {
  if (budget == 0) return Status();
  PlanSettings fitted = *settings;
  for (const Size& size : kSizes) {
    if (size.slots > settings->slots || size.slice_bytes > settings->largest_slice_bytes) continue;
    fitted.slots = size.slots;
    fitted.largest_slice_bytes = size.slice_bytes;
    if (MostMemory(nranks, fitted, possible) > budget) continue;
    *settings = fitted;
    return Status();
  }
  return Status::Invalid("memory_bytes (ANNULUS_MEMORY_BYTES) is " + std::to_string(budget) + ", but " +
                         std::to_string(nranks) + " ranks need at least " +
                         std::to_string(MostMemory(nranks, fitted, possible)) +
                         " bytes with these settings; fewer channels, smaller slices or a smaller ANNULUS_MESH_RANKS "
                         "need less");
}

}  // namespace annulus
