#include "collectives/engine/memory_budget.h"

#include <algorithm>
#include <string>

#include "collectives/engine/engine.h"

namespace annulus {
namespace {

// Of a link: rings, cells, buffers of frames. Shared memory takes 19 KiB; TCP 7 KiB for each socket, of which up to
// kChosenSockets are chosen, and 39 KiB for a single one.
constexpr size_t kLinkBytes = 16 * 1024;
constexpr size_t kSocketBytes = 8 * 1024;
constexpr size_t kOneSocketBytes = 40 * 1024;
constexpr int kChosenSockets = 2;
constexpr size_t kPageBytes = 4096;
constexpr int kLeastGridRanks = 4;     // Two hosts of two.
constexpr size_t kMostLevelPeers = 4;  // Two on each level.

size_t RoundUpToPage(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// From the fastest to the smallest.
struct Size {
  int slots;
  size_t slice_bytes;
};
constexpr Size kSizes[] = {{8, 256 * 1024}, {8, 128 * 1024}, {8, 64 * 1024},
                           {4, 64 * 1024},  {4, 32 * 1024},  {4, 16 * 1024}};

}  // namespace

size_t MostMemory(int nranks, const PlanSettings& settings, int tcp_sockets) {
  const size_t sockets = static_cast<size_t>(std::max(tcp_sockets, kChosenSockets));
  // The layout is not known yet: ranks may turn out to lie on a grid of hosts.
  const bool may_be_grid = nranks >= kLeastGridRanks;
  const size_t level_links = may_be_grid && !HasMesh(nranks, settings) ? kMostLevelPeers : 0;
  const size_t links = LinksNeeded(0, nranks, settings).size() + level_links;
  const size_t slots = 2 * static_cast<size_t>(settings.slots) * RoundUpToPage(SlotBytes(settings));
  const size_t peers = static_cast<size_t>(nranks - 1);
  const size_t pipelines =
      static_cast<size_t>(settings.channels) + (may_be_grid ? 1 : 0) + (HasMesh(nranks, settings) ? 2 * peers : 0);
  PlanSettings one_host = settings;
  one_host.over_sockets = true;
  one_host.host_of.clear();
  PlanSettings several = one_host;
  several.host_of.assign(nranks, 1);
  const size_t exchanges = std::max(ExchangesBytes(nranks, one_host), ExchangesBytes(nranks, several));
  const size_t per_link = slots + kLinkBytes + std::max(sockets * kSocketBytes, kOneSocketBytes);
  return sizeof(Engine) + exchanges + links * per_link +
         pipelines * (Pipeline::MemoryBytes(WindowSteps(settings)) + 1024);
}

Status FitMemory(int nranks, size_t budget, int tcp_sockets, PlanSettings* settings) {
  if (budget == 0) return Status();
  PlanSettings fitted = *settings;
  for (const Size& size : kSizes) {
    if (size.slots > settings->slots || size.slice_bytes > settings->largest_slice_bytes) continue;
    fitted.slots = size.slots;
    fitted.largest_slice_bytes = size.slice_bytes;
    if (MostMemory(nranks, fitted, tcp_sockets) > budget) continue;
    *settings = fitted;
    return Status();
  }
  return Status::Invalid("memory_bytes (ANNULUS_MEMORY_BYTES) is " + std::to_string(budget) + ", but " +
                         std::to_string(nranks) + " ranks need at least " +
                         std::to_string(MostMemory(nranks, fitted, tcp_sockets)) +
                         " bytes with these settings; fewer channels, smaller slices or a smaller ANNULUS_MESH_RANKS "
                         "need less");
}

}  // namespace annulus
