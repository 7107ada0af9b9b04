#include "collectives/cost/job_costs.h"

#include <algorithm>

namespace annulus {
namespace {

// Sharing of a host's network among its ranks.
struct Sharing {
  bool far = false;    // Whether there is more than one host.
  double ring = 1;     // Largest number of the ring's links that leave one host.
  double ranks = 1;    // Largest number of ranks on one host.
  double outside = 1;  // Largest share of a rank's links that leaves the host.
};

Sharing SharingOf(int nranks, const std::vector<int>& host_of) {
  Sharing sharing;
  if (host_of.empty()) return sharing;
  const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
  if (hosts == 1) return sharing;
  std::vector<int> ranks(hosts);
  std::vector<int> leaving(hosts);
  for (int rank = 0; rank < nranks; ++rank) {
    ++ranks[host_of[rank]];
    if (host_of[rank] != host_of[(rank + 1) % nranks]) ++leaving[host_of[rank]];
  }
  sharing.far = true;
  sharing.ring = *std::max_element(leaving.begin(), leaving.end());
  sharing.ranks = *std::max_element(ranks.begin(), ranks.end());
  const int fewest = *std::min_element(ranks.begin(), ranks.end());
  sharing.outside = static_cast<double>(nranks - fewest) / (nranks - 1);
  return sharing;
}

LinkCosts Shared(LinkCosts costs, double by) {
  costs.byte_s *= by;
  return costs;
}

}  // namespace

LinkKinds NominalLinks(const Topology& topology) {
  LinkKinds links;
  if (topology.near != nullptr) links.near = topology.near->costs({true, topology.ranks_per_core});
  if (topology.far != nullptr) links.far = topology.far->costs({false, topology.ranks_per_core});
  links.near.ranks_per_core = links.far.ranks_per_core = topology.ranks_per_core;
  return links;
}

JobCosts EqualCosts(const LinkCosts& link) { return {{link, link}, link, link, link}; }

JobCosts CostsOf(const LinkKinds& links, const Topology& topology) {
  const Sharing sharing = SharingOf(topology.nranks, topology.host_of);
  const LinkCosts& slowest = sharing.far ? links.far : links.near;
  JobCosts costs{links, Shared(slowest, sharing.ring), Shared(slowest, sharing.ranks * sharing.outside),
                 Shared(slowest, sharing.ranks)};
  // Costs beyond the message itself. Without system calls, one hop needs no slots and flights (short_hop.h), while log
  // steps pack theirs. With system calls, one hop polls all links all the time, which is a cost when others wait for
  // the core.
  constexpr double kFactor = 1.5;
  const TransportInfo* const transport = sharing.far ? topology.far : topology.near;
  if (transport == nullptr || !transport->by_system_calls) {
    costs.log_steps.message_s *= kFactor;
    if (topology.ranks_per_core <= 1) {
      costs.one_hop.message_s /= kFactor;
      costs.one_hop.move_byte_s /= kFactor;
    }
  } else if (topology.ranks_per_core > 1) {
    costs.one_hop.message_s *= kFactor;
  }
  return costs;
}

JobCosts Scaled(const JobCosts& costs, const CostFactors& factors) {
  JobCosts scaled = costs;
  for (LinkCosts* each : {&scaled.links.near, &scaled.links.far, &scaled.ring, &scaled.one_hop, &scaled.log_steps}) {
    each->latency_s *= factors.message;
    each->message_s *= factors.message;
    each->byte_s *= factors.byte;
    each->reduce_byte_s *= factors.byte;
    each->move_byte_s *= factors.byte;
  }
  return scaled;
}

}  // namespace annulus
