// Cost model: the time of an allreduce, from the costs of a link and a core. Pure; the same on every rank.
//
// The costs are those of Hockney's and LogP's models: a message of b bytes takes latency + b * byte on a link, and
// keeps the core busy for `message` at each hop and for b * reduce_byte where it is reduced. Sources of the formulas:
//   R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH" (2005): ring,
//     recursive doubling, reduce-scatter and allgather by halving and doubling;
//   P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009): ring;
//   J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997):
//     the allgather in log steps;
//   P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009).
// Slices and rounds are our own addition, after schedule.h. tests/collectives/cost/cost_model_test.cc compares the ring
// and the one-hop exchange with the engine on simulated links.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/core/schedule.h"
#include "transport/link_costs.h"

namespace annulus {

// Slices and rounds of a ring (schedule.h).
struct RingSlices {
  size_t slice_bytes = 256 * 1024;
  int round_slices = 4;
};

// The ring: reduce-scatter and allgather, 2(n-1) hops, pipelined in slices.
double RingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs);

// Half of the ring: reduce-scatter or allgather of `bytes` in all, n-1 hops.
double HalfRingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces);

// Broadcast or reduce along a chain of all ranks, n-1 hops, pipelined in slices.
double ChainSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces);

// One hop: every rank sends its data to every other rank, and each reduces for itself.
double OneHopSeconds(int nranks, double bytes, const LinkCosts& costs);

// Two hops: every rank sends each other rank its part of that rank's chunk, reduces its own chunk, and sends the result
// to all.
double TwoHopSeconds(int nranks, double bytes, const LinkCosts& costs);

// The traffic of one hop in ceil(log2 n) messages: an allgather of the inputs after Bruck, and a local fold in the
// ring's order.
double LogGatherSeconds(int nranks, double bytes, const LinkCosts& costs);

// Log steps with less traffic, in the ring's order. An all-to-all after Bruck brings each rank all inputs of its chunk,
// the rank folds them, and an allgather after Bruck spreads the results. 2 * ceil(log2 n) messages of about bytes / 2
// or less.
double LogExchangeSeconds(int nranks, double bytes, const LinkCosts& costs);

// Recursive doubling: in each of log2(n) steps, pairs of ranks exchange everything and add. (Its order is not the
// ring's.)
double RecursiveDoublingSeconds(int nranks, double bytes, const LinkCosts& costs);

// Reduce-scatter by recursive halving, allgather by recursive doubling. (Its order is not the ring's.)
double HalvingDoublingSeconds(int nranks, double bytes, const LinkCosts& costs);

// Two binary trees, each for half of the data, up and down, pipelined in slices of the best size. (Its order is not the
// ring's.)
double TreeSeconds(int nranks, double bytes, const LinkCosts& costs);

// The tree of small messages: up and down, without pipelining (tree_exchange.h). (Its order is not the ring's.)
double SmallTreeSeconds(int nranks, double bytes, const LinkCosts& costs);

// Rings in two levels: a reduce-scatter inside each group, a ring over the groups for each member's share, and an
// allgather inside. `outer_sharing` is the number of rings that share one outer link: group_size where a group is a
// host, 1 where each member has its own link. (Its order is not the ring's.)
struct TwoLevelShape {
  int groups = 1;
  int group_size = 1;
  double outer_sharing = 1;
};
double TwoLevelSeconds(const TwoLevelShape& shape, double bytes, const RingSlices& slices, const LinkCosts& inner,
                       const LinkCosts& outer);

// The group size, a divisor of nranks, for which two levels over equal links take the least time.
int BestGroupSize(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs);

}  // namespace annulus
