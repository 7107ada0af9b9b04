// JobCosts: the costs of a job's links for each kind of exchange.
//
// Threads: plain functions and values.
#pragma once

#include "collectives/core/topology.h"
#include "collectives/cost/cost_model.h"

namespace annulus {

// Costs of the two kinds of links, as if each link's ranks had the host and the network for themselves.
struct LinkKinds {
  LinkCosts near;  // Costs between ranks of one host.
  LinkCosts far;   // Costs between hosts.
};

struct JobCosts {
  LinkKinds links;
  LinkCosts ring;       // Costs of the ring's slowest link.
  LinkCosts one_hop;    // Costs of all links of a rank together.
  LinkCosts log_steps;  // Costs of the slowest link of a step.
};

// Costs of links that nobody has measured, as their transports state them. They depend on the layout alone, so that
// runs agree. Nothing where the transport is not known.
LinkKinds NominalLinks(const Topology& topology);

// Bounds of the ratio of measured to nominal costs: links of 100 Gbit/s cost a hundredth of the nominal ones. A
// measurement beyond these bounds has failed.
inline constexpr double kLeastFactor = 1e-3;
inline constexpr double kMostFactor = 1e3;

// Ratios of measured to nominal costs.
struct CostFactors {
  double message = 1;  // Ratio for the cost of each message.
  double byte = 1;     // Ratio for the cost of each byte.
};
JobCosts Scaled(const JobCosts& costs, const CostFactors& factors);

// Costs of links that are all equal and that no two ranks share.
JobCosts EqualCosts(const LinkCosts& link);

// Costs in which the ranks of a host share its network and its cores.
JobCosts CostsOf(const LinkKinds& links, const Topology& topology);

}  // namespace annulus
