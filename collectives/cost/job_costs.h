// JobCosts: what the links of a job cost, as each kind of exchange meets them.
//
// Threads: plain functions and values.
#pragma once

#include "collectives/core/plan_settings.h"
#include "collectives/cost/cost_model.h"

namespace annulus {

// Of the two kinds of links, each as if its ranks had host and network for themselves.
struct LinkKinds {
  LinkCosts near;  // Between ranks of one host.
  LinkCosts far;   // Between hosts.
};

struct JobCosts {
  LinkKinds links;
  LinkCosts ring;       // Of the ring's slowest link.
  LinkCosts one_hop;    // Of all links of a rank together.
  LinkCosts log_steps;  // Of the slowest link of a step.
};

// What links cost as long as nobody has measured them: as their transports say, and a function of the layout alone, so
// that runs agree. Nothing where the transport is not known.
LinkKinds NominalLinks(const PlanSettings& settings);

// How far measured costs are from nominal ones, at most: links of 100 Gbit/s cost a hundredth of the nominal one. What
// would lie beyond is a measurement that failed.
inline constexpr double kLeastFactor = 1e-3;
inline constexpr double kMostFactor = 1e3;

// How far measured costs are from nominal ones.
struct CostFactors {
  double message = 1;  // Of what each message costs.
  double byte = 1;     // Of what each byte costs.
};
JobCosts Scaled(const JobCosts& costs, const CostFactors& factors);

// Hosts share their network and their cores among their ranks.
JobCosts CostsOf(const LinkKinds& links, int nranks, const PlanSettings& settings);

}  // namespace annulus
