// HostGrid: the ranks of a job as a grid of hosts and members, where all hosts have equally many ranks.
//
// Hosts are numbered in the order of their lowest ranks, and the members of a host in the order of their ranks. So the
// grid depends only on which ranks share a host.
//
// Threads: plain values.
#pragma once

#include <span>
#include <vector>

namespace annulus {

// A ring over some of the ranks, as one of them sees it.
struct RankRing {
  int size = 1;
  int position = 0;
  int prev = -1;  // Rank of the previous member of the ring.
  int next = -1;  // Rank of the next member of the ring.
};

class HostGrid {
 public:
  // No grid: the ranks are not known to share hosts, or share them unevenly.
  HostGrid() = default;

  // `host_of` has a number for each rank, equal where ranks share a host. There is no grid unless at least two hosts
  // exist, all with equally many ranks, at least two each.
  explicit HostGrid(std::span<const int> host_of);

  bool exists() const { return members_ > 1; }
  int hosts() const { return hosts_; }
  int members() const { return members_; }  // Number of ranks of each host.

  int RankAt(int host, int member) const { return ranks_[host * members_ + member]; }

  // The ring of the rank's host, and the ring of the ranks with the same member number on all hosts.
  RankRing Inner(int rank) const;
  RankRing Outer(int rank) const;

 private:
  int IndexOf(int rank) const;

  int hosts_ = 0;
  int members_ = 0;
  std::vector<int> ranks_;  // By host and member.
};

}  // namespace annulus
