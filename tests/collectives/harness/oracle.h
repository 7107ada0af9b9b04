// Oracle: what a collective must give, computed from all inputs by plain loops.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/annulus.h"
#include "collectives/core/collective.h"
#include "collectives/core/host_grid.h"

namespace annulus {

using Bytes = std::vector<std::byte>;

// A reproducible input of `count` elements for `rank`: integers of any bits, floats of mixed magnitudes, so that sums
// depend on their order.
Bytes MakeInput(DataType type, size_t count, int rank, uint64_t seed);

// As ==, which compares byte by byte.
bool SameBits(const Bytes& a, const Bytes& b);

// Elements of the input and output buffers of `call` on a rank.
size_t InputElements(const Call& call, int nranks);
size_t OutputElements(const Call& call, int nranks);

// The operation of a call, when the user created it: a sum with rank r's factor in factors[r], or a function.
struct CreatedOp {
  std::vector<double> factors;
  annulus_reduce_fn function = nullptr;
  void* context = nullptr;
};

// Factors for `nranks` ranks, all different, that `type` holds.
std::vector<double> MakeFactors(DataType type, int nranks);

// A reduction of uint32 that is associative but not commutative: x -> a x + b modulo 2^16, as a << 16 | b, after
// another such line. Adds the elements combined to the size_t at `context`, unless that is null.
int32_t ComposeLines(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* context);

// The output of `rank`, folding in the order that docs/determinism.md promises. Empty where the rank's output is not
// written.
Bytes ExpectedOutput(const Call& call, const std::vector<Bytes>& inputs, int rank, const CreatedOp& created = {});

// The output of an allreduce through a tree, which folds in an order of its own.
Bytes ExpectedTreeOutput(const Call& call, const std::vector<Bytes>& inputs, const CreatedOp& created = {});

// Up to here an allreduce has the same order on any layout of hosts, as docs/determinism.md has it.
constexpr size_t kMostOneLevelBytes = 16 * 1024;

// The output of an allreduce in two levels.
Bytes ExpectedInLevels(const Call& call, const std::vector<Bytes>& inputs, const HostGrid& grid,
                       const CreatedOp& created = {});

// That of a call as it is done by default where the ranks make that grid, if any.
Bytes ExpectedOn(const HostGrid& grid, const Call& call, const std::vector<Bytes>& inputs, int rank);

}  // namespace annulus
