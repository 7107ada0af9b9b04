#include "collectives/engine/memory_budget.h"

#include <algorithm>
#include <string>

#include "collectives/algorithms/table.h"
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
constexpr size_t kMostLevelPeers = 4;  // On a grid of hosts, two on each level.

size_t RoundUpToPage(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// A grid of so many ranks; none when there is none.
HostGrid AnyGrid(int nranks) {
  int hosts = 2;
  while (hosts < nranks && nranks % hosts != 0) ++hosts;
  std::vector<int> host_of(nranks);
  for (int rank = 0; rank < nranks; ++rank) host_of[rank] = rank % hosts;
  return HostGrid(host_of);
}

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
  // The layout is not known yet: ranks may turn out to lie on a grid of hosts, or to share no memory.
  const HostGrid grid = AnyGrid(nranks);
  PlanSettings one_host = settings;
  one_host.over_sockets = true;
  one_host.host_of.clear();
  PlanSettings several = one_host;
  several.host_of.assign(nranks, 1);
  size_t links = 0;
  size_t runners = 0;
  for (const PlanSettings& layout : {one_host, several}) {
    const Job job{nranks, layout, grid};
    links = std::max(links, LinksNeeded(0, job).size() + (HasMesh(nranks, settings) ? 0 : kMostLevelPeers));
    runners = std::max(runners, RunnersBytes(job));
  }
  const size_t slots = 2 * static_cast<size_t>(settings.slots) * RoundUpToPage(SlotBytes(settings));
  const size_t per_link = slots + kLinkBytes + std::max(sockets * kSocketBytes, kOneSocketBytes);
  return sizeof(Engine) + runners + links * per_link;
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
