#include "collectives/core/rank_tree.h"

#include <cstdint>

namespace annulus {

int TreeParent(int rank) {
  if (rank == 0) return -1;
  int64_t digit = 1;  // The weight of the last digit that is not zero.
  while (rank / digit % kTreeRadix == 0) digit *= kTreeRadix;
  return static_cast<int>(rank - rank / digit % kTreeRadix * digit);
}

std::vector<int> TreeChildren(int rank, int nranks) {
  std::vector<int> children;
  for (int64_t weight = 1; weight < nranks && rank % (weight * kTreeRadix) == 0; weight *= kTreeRadix) {
    for (int digit = 1; digit < kTreeRadix && rank + digit * weight < nranks; ++digit) {
      children.push_back(static_cast<int>(rank + digit * weight));
    }
  }
  return children;
}

}  // namespace annulus
