#include "collectives/core/host_grid.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace annulus {

HostGrid::HostGrid(std::span<const int> host_of) {
  std::map<int, size_t> numbers;
  std::vector<std::vector<int>> hosts;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto [host, is_new] = numbers.try_emplace(host_of[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[host->second].push_back(static_cast<int>(rank));
  }
  if (hosts.size() < 2 || hosts[0].size() < 2) return;
  const size_t members = hosts[0].size();
  const auto differs = [members](const std::vector<int>& ranks) { return ranks.size() != members; };
  if (std::any_of(hosts.begin(), hosts.end(), differs)) return;
  hosts_ = static_cast<int>(hosts.size());
  members_ = static_cast<int>(members);
  for (const std::vector<int>& ranks : hosts) ranks_.insert(ranks_.end(), ranks.begin(), ranks.end());
}

int HostGrid::IndexOf(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  ANNULUS_CHECK(found != ranks_.end());
  return static_cast<int>(found - ranks_.begin());
}

RankRing HostGrid::Inner(int rank) const {
  const int host = IndexOf(rank) / members_;
  const int member = IndexOf(rank) % members_;
  return {members_, member, RankAt(host, (member + members_ - 1) % members_), RankAt(host, (member + 1) % members_)};
}

RankRing HostGrid::Outer(int rank) const {
  const int host = IndexOf(rank) / members_;
  const int member = IndexOf(rank) % members_;
  return {hosts_, host, RankAt((host + hosts_ - 1) % hosts_, member), RankAt((host + 1) % hosts_, member)};
}

}  // namespace annulus
