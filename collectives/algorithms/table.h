// The table of algorithms: the one place that lists them. Whoever asks about all of them asks here.
//
// Threads: constants and pure functions.
#pragma once

#include <span>
#include <vector>

#include "collectives/algorithms/row.h"

namespace annulus {

// Those that can be chosen, in the order of preference.
std::span<const AlgorithmRow* const> ChoosableAlgorithms();

// All, also those that do what can be done in no other way.
std::span<const AlgorithmRow* const> AllAlgorithms();

const AlgorithmRow& RowOf(Algorithm algorithm);

// The links of a rank: each once, by channel, then by peer.
std::vector<NeededLink> LinksNeeded(int rank, const Job& job);

// Bytes that all runners of a rank hold, at most.
size_t RunnersBytes(const Job& job);

}  // namespace annulus
