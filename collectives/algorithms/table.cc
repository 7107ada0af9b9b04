#include "collectives/algorithms/table.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "collectives/algorithms/direct/direct.h"
#include "collectives/algorithms/log/log_exchange.h"
#include "collectives/algorithms/log/log_gather.h"
#include "collectives/algorithms/message/message.h"
#include "collectives/algorithms/one_hop/one_hop.h"
#include "collectives/algorithms/ring/ring.h"
#include "collectives/algorithms/shared_fold/shared_fold.h"
#include "collectives/algorithms/tree/tree_exchange.h"
#include "collectives/algorithms/two_hop/two_hop.h"
#include "collectives/algorithms/two_level/two_level.h"

namespace annulus {
namespace {

// In order of preference: where an algorithm supports a call, it is faster than those that follow.
constexpr const AlgorithmRow* kRows[] = {
    &kTwoLevelRow,
    &kTreeRow,
    &kLogGatherRow,
    &kLogStepsRow,
    &kOneHopRow,
    &kSharedFoldRow,
    &kTwoHopRow,
    &kRingRow,
    // For calls that only one algorithm supports.
    &kDirectRow,
    &kMessageRow,
};
constexpr size_t kFixedRows = 2;

}  // namespace

std::span<const AlgorithmRow* const> AllAlgorithms() { return kRows; }

std::span<const AlgorithmRow* const> ChoosableAlgorithms() {
  return AllAlgorithms().first(std::size(kRows) - kFixedRows);
}

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
