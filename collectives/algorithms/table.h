// The table of algorithms: the only place that lists them all.
//
// Threads: constants and pure functions.
#pragma once

#include <span>
#include <vector>

#include "collectives/algorithms/row.h"

namespace annulus {

// Algorithms that can be chosen, in order of preference.
std::span<const AlgorithmRow* const> ChoosableAlgorithms();

// All algorithms, including those for calls that only one algorithm can do.
std::span<const AlgorithmRow* const> AllAlgorithms();

const AlgorithmRow& RowOf(Algorithm algorithm);

// Links that a rank needs: each once, sorted by channel, then by peer.
std::vector<NeededLink> LinksNeeded(int rank, const AlgorithmJob& job);

// Most bytes that all runners of a rank hold.
size_t RunnersBytes(const AlgorithmJob& job);

}  // namespace annulus
