// Membership: who makes up a communicator. An immutable value, the same on every rank. A communicator's links, engine
// and control connections are made for one membership; a different set of ranks is another membership, with another
// communicator.
//
// Ranks are numbers within a membership. A process keeps its process rank, the one that it had in the job's first
// communicator, so that messages and traces of several communicators name it alike.
//
// Threads: an immutable value.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/core/topology.h"
#include "collectives/membership/members.h"

namespace annulus {

class Membership {
 public:
  // All ranks of a job. They have not met: neither their members' data nor their topology is known.
  explicit Membership(int nranks);

  // Those ranks of this membership, in that order, as ranks 0, 1, ... of another one. They have yet to meet there.
  Membership Among(const std::vector<int>& ranks) const;

  // The same ranks once they have met. `members` has their data by rank.
  Membership Met(TransportList transports, std::vector<Member> members) const;

  // Number of memberships from which this one was made, one after the other; 0: the job's own.
  uint32_t epoch() const { return epoch_; }

  int nranks() const { return topology_.nranks; }
  int process_rank(int rank) const { return process_ranks_[rank]; }

  // By rank; empty until they have met.
  const std::vector<Member>& members() const { return members_; }
  const Topology& topology() const { return topology_; }

 private:
  Membership(uint32_t epoch, std::vector<int> process_ranks, std::vector<Member> members, Topology topology);

  uint32_t epoch_;
  std::vector<int> process_ranks_;  // By rank.
  std::vector<Member> members_;
  Topology topology_;
};

}  // namespace annulus
