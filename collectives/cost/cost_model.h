// Cost model: how long an allreduce takes, from what a link and a core cost. Pure; the same on every rank.
//
// The costs are those of Hockney's and LogP's models: a message of b bytes takes latency + b * byte on a link, keeps
// the core busy for `message` at each hop, and b * reduce_byte where it is reduced. Sources of the formulas:
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH" (2005): ring,
//     recursive doubling, reduce-scatter and allgather by halving and doubling;
//   P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009): ring;
//   J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997):
//     the allgather in log steps;
//   P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
// What is ours is slices and rounds, after schedule.h. tests/collectives/cost/cost_model_test.cc compares the ring and
// the one-hop exchange with the engine on simulated links.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/core/schedule.h"
#include "transport/link_costs.h"

namespace annulus {

// How a ring cuts its chunks (schedule.h).
struct RingSlices {
  size_t slice_bytes = 256 * 1024;
  int round_slices = 4;
};

// The ring: reduce-scatter and allgather, 2(n-1) hops, pipelined in slices.
double RingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs);

// Half of it: reduce-scatter or allgather of `bytes` in all, n-1 hops.
double HalfRingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces);

// Broadcast or reduce along a chain of all ranks, n-1 hops, pipelined in slices.
double ChainSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces);

// Every rank sends all to every other and reduces for itself.
double OneHopSeconds(int nranks, double bytes, const LinkCosts& costs);

// The same traffic in ceil(log2 n) messages: an allgather of the inputs after Bruck, and a local fold in the ring's
// order.
double LogGatherSeconds(int nranks, double bytes, const LinkCosts& costs);

// Log steps with little traffic, in the ring's order: an all-to-all after Bruck brings each rank all inputs of its
// chunk, it folds them, and an allgather after Bruck spreads the results. 2 * ceil(log2 n) messages of about bytes / 2
// or less.
double LogExchangeSeconds(int nranks, double bytes, const LinkCosts& costs);

// Recursive doubling: in each of log2(n) steps pairs of ranks exchange all and add. (Its order is not the ring's.)
double RecursiveDoublingSeconds(int nranks, double bytes, const LinkCosts& costs);

// Reduce-scatter by recursive halving, allgather by recursive doubling. (Its order is not the ring's.)
double HalvingDoublingSeconds(int nranks, double bytes, const LinkCosts& costs);

// Two binary trees, each for half of the data, up and down, pipelined in the best slices. (Its order is not the
// ring's.)
double TreeSeconds(int nranks, double bytes, const LinkCosts& costs);

// The tree of small messages: up and down, all at once (tree_exchange.h). (Its order is not the ring's.)
double SmallTreeSeconds(int nranks, double bytes, const LinkCosts& costs);

// Rings in two levels: reduce-scatter inside each group, a ring over the groups for each member's share, allgather
// inside. `outer_sharing` rings have one outer link between them: group_size where a group is a host, 1 where each
// member has a link of its own. (Its order is not the ring's.)
struct TwoLevelShape {
  int groups = 1;
  int group_size = 1;
  double outer_sharing = 1;
};
double TwoLevelSeconds(const TwoLevelShape& shape, double bytes, const RingSlices& slices, const LinkCosts& inner,
                       const LinkCosts& outer);

// The group size, a divisor of nranks, for which two levels over links that are all alike take least.
int BestGroupSize(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs);

// What an allreduce takes with the algorithm and slices that MakePlan chose, over links that are all alike.
double PlannedAllreduceSeconds(const ScheduleParams& plan, const LinkCosts& costs);

}  // namespace annulus
