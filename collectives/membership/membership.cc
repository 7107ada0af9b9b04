#include "collectives/membership/membership.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace annulus {

static std::vector<int> AllRanks(int nranks) {
  std::vector<int> ranks(nranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Membership::Membership(uint32_t epoch, std::vector<int> process_ranks, std::vector<Member> members, Topology topology)
    : epoch_(epoch),
      process_ranks_(std::move(process_ranks)),
      members_(std::move(members)),
      topology_(std::move(topology)) {}

Membership::Membership(int nranks) : Membership(0, AllRanks(nranks), {}, Topology(nranks)) {}

Membership Membership::Among(const std::vector<int>& ranks) const {
  std::vector<int> process_ranks;
  for (const int rank : ranks) process_ranks.push_back(process_rank(rank));
  return {epoch_ + 1, std::move(process_ranks), {}, Topology(static_cast<int>(ranks.size()))};
}

Membership Membership::Met(TransportList transports, std::vector<Member> members) const {
  ANNULUS_CHECK(static_cast<int>(members.size()) == nranks());
  Topology topology = FindTopology(transports, members);
  return {epoch_, process_ranks_, std::move(members), std::move(topology)};
}

}  // namespace annulus
