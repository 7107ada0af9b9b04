// Sizes of the parts that ranks exchange, for tests of the collectives whose buffers hold a part for every rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/core/collective.h"

namespace annulus {

// Elements of the part that goes from one rank (first index) to another.
using PartCounts = std::vector<std::vector<size_t>>;

// As `kind` has them: 0 between ranks that exchange none, one size per rank where everyone gets or gives the same, one
// size in all where parts are uniform. Drawn from `sizes` by the seed.
PartCounts MakeCounts(CollectiveKind kind, int nranks, int root, unsigned seed, std::span<const size_t> sizes);

}  // namespace annulus
