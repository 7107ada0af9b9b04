#include "collectives/comm/job_links.h"

#include <algorithm>

#include "transport/select/select.h"

namespace annulus {
namespace {

// The preferred transport among those that all ranks can use; if there is none, the last one that any rank can use.
// `far`: only transports that reach other hosts.
const TransportInfo* CommonTransport(TransportList transports, std::span<const PeerInfo> peers, bool far) {
  const TransportInfo* last = nullptr;
  for (size_t i = 0; i < transports.size(); ++i) {
    if (far && transports[i]->same_host_only) continue;
    const auto can_use = [i](const PeerInfo& peer) { return !peer.addresses[i].empty(); };
    if (std::ranges::all_of(peers, can_use)) return transports[i];
    if (std::ranges::any_of(peers, can_use)) last = transports[i];
  }
  return last;
}

// Whether messages of some pair of ranks cost system calls. It is enough to look at the links to rank 0: if none of
// them does, all ranks are on its host.
bool HasSystemCalls(TransportList transports, std::span<const PeerInfo> peers) {
  for (size_t r = 1; r < peers.size(); ++r) {
    int chosen = 0;
    const SelectEnd end{static_cast<int>(r), peers[r].host_id, peers[r].addresses};
    const Status found = SelectTransport(transports, {0, peers[0].host_id, peers[0].addresses}, end, &chosen);
    if (!found.ok() || transports[chosen]->by_system_calls) return true;
  }
  return false;
}

}  // namespace

void DescribeLinks(TransportList transports, std::span<const PeerInfo> peers, PlanSettings* plan) {
  plan->near = CommonTransport(transports, peers, false);
  plan->far = CommonTransport(transports, peers, true);
  plan->by_system_calls = HasSystemCalls(transports, peers);
}

}  // namespace annulus
