// The tree over the ranks of a job, rooted at rank 0.
//
// It is the tree of numbers in base kTreeRadix: a rank's parent is the rank without its last non-zero digit. So the
// ranks below a rank r are those from r to the one before its next sibling.
//
// Threads: pure functions.
#pragma once

#include <vector>

namespace annulus {

constexpr int kTreeRadix = 4;

// Parent of `rank`; -1 for the root.
int TreeParent(int rank);
// Children of `rank` in ascending order; none at or beyond nranks.
std::vector<int> TreeChildren(int rank, int nranks);

}  // namespace annulus
