#include "tests/collectives/harness/part_counts.h"

#include <random>

namespace annulus {

PartCounts MakeCounts(CollectiveKind kind, int n, int root, unsigned seed, std::span<const size_t> sizes) {
  std::mt19937 random(seed);
  const bool same = !HasVariableParts(kind);
  const size_t common = sizes[seed % sizes.size()];
  const auto pick = [&] { return same ? common : sizes[random() % sizes.size()]; };
  std::vector<size_t> of_rank;
  for (int r = 0; r < n; ++r) of_rank.push_back(pick());
  PartCounts counts(n, std::vector<size_t>(n, 0));
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      size_t& count = counts[from][to];
      if (IsAlltoall(kind)) count = pick();
      if (IsAllgather(kind)) count = of_rank[from];
      if (IsReduceScatter(kind)) count = of_rank[to];
      if (IsGather(kind) && to == root) count = of_rank[from];
      if (IsScatter(kind) && from == root) count = of_rank[to];
    }
  }
  return counts;
}

}  // namespace annulus
