#include "collectives/algorithms/table.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace annulus {
#define ANNULUS_ALGORITHM(Name, ...) extern const AlgorithmRow k##Name##Row;
#define ANNULUS_ONLY_ALGORITHM(Name, ...) extern const AlgorithmRow k##Name##Row;
#include "collectives/core/algorithms.inc"
#undef ANNULUS_ONLY_ALGORITHM
#undef ANNULUS_ALGORITHM

namespace {

constexpr const AlgorithmRow* kRows[] = {
#define ANNULUS_ALGORITHM(Name, ...) &k##Name##Row,
#define ANNULUS_ONLY_ALGORITHM(Name, ...) &k##Name##Row,
#include "collectives/core/algorithms.inc"
#undef ANNULUS_ONLY_ALGORITHM
#undef ANNULUS_ALGORITHM
};

}  // namespace

std::span<const AlgorithmRow* const> AllAlgorithms() { return kRows; }

std::span<const AlgorithmRow* const> ChoosableAlgorithms() { return AllAlgorithms().first(std::size(kAlgorithms)); }

const AlgorithmRow& RowOf(Algorithm algorithm) {
  const auto is_it = [algorithm](const AlgorithmRow* row) { return row->algorithm == algorithm; };
  const auto found = std::find_if(std::begin(kRows), std::end(kRows), is_it);
  ANNULUS_CHECK(found != std::end(kRows));
  return **found;
}

std::vector<NeededLink> LinksNeeded(int rank, const AlgorithmJob& job) {
  std::vector<NeededLink> links;
  for (const AlgorithmRow* row : AllAlgorithms()) row->add_links(rank, job, &links);
  const auto by_channel = [](const NeededLink& left, const NeededLink& right) {
    return std::tie(left.channel, left.peer) < std::tie(right.channel, right.peer);
  };
  std::sort(links.begin(), links.end(), by_channel);
  links.erase(std::unique(links.begin(), links.end()), links.end());
  return links;
}

size_t RunnersBytes(const AlgorithmJob& job) {
  size_t bytes = 0;
  for (const AlgorithmRow* row : AllAlgorithms()) bytes += row->memory_bytes(job);
  return bytes;
}

}  // namespace annulus
