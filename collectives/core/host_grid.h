// HostGrid: the ranks of a job as hosts times members, where every host has equally many.
//
// Hosts are numbered in the order of their lowest ranks, the members of a host in the order of their ranks. So the grid
// depends on nothing but which ranks share a host.
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
  int prev = -1;  // Ranks.
  int next = -1;
};

class HostGrid {
 public:
  // No grid: the ranks are not known to share hosts, or do so unevenly.
  HostGrid() = default;

  // `host_of` has a number for each rank, equal where ranks share a host. Gives no grid unless there are at least two
  // hosts with equally many ranks, at least two each.
  explicit HostGrid(std::span<const int> host_of);

  bool exists() const { return members_ > 1; }
  int hosts() const { return hosts_; }
  int members() const { return members_; }  // Of each host.

  int RankAt(int host, int member) const { return ranks_[host * members_ + member]; }

  // The ring of the rank's host, and that of the ranks with its place on all hosts.
  RankRing Inner(int rank) const;
  RankRing Outer(int rank) const;

 private:
  int IndexOf(int rank) const;

  int hosts_ = 0;
  int members_ = 0;
  std::vector<int> ranks_;  // By host and member.
};

}  // namespace annulus
