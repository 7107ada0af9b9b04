// Oracle: what a collective must give, computed from all inputs by plain loops.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/collective.h"

namespace annulus {

using Bytes = std::vector<std::byte>;

// A reproducible input of `count` elements for `rank`: integers of any bits, floats of mixed magnitudes, so that sums
// depend on their order.
Bytes MakeInput(DataType type, size_t count, int rank, uint64_t seed);

// Elements of the input and output buffers of `call` on a rank.
size_t InputElements(const Call& call, int nranks);
size_t OutputElements(const Call& call, int nranks);

// The output of `rank`, folding in the order that docs/determinism.md promises. Empty where the rank's output is not
// written.
Bytes ExpectedOutput(const Call& call, const std::vector<Bytes>& inputs, int rank);

}  // namespace annulus
