// Row of the tree (tree_exchange.h): the smallest allreduces and barriers between many ranks.
#include <algorithm>

#include "collectives/algorithms/tree/tree_exchange.h"

namespace annulus {
namespace {

// Up to this many ranks, fewer hops count more than fewer messages: docs/decisions/0024-trees.md.
constexpr int kMostRanksWithoutTree = kMaxOneHopRanks;
// Largest call on a tree, in bytes: rank 0 sends and receives the data nine times.
constexpr size_t kMostTreeBytes = 4 * 1024;

bool HasTree(const AlgorithmJob& job) {
  return job.nranks() > 1 && (job.nranks() > kMostRanksWithoutTree || job.settings.algorithm == Algorithm::kTree);
}

size_t MostBytes(const PlanSettings& settings) { return std::min(kMostTreeBytes, settings.small_bytes); }

const char* WhyNot(const Question& q) {
  if (!q.IsAllreduceOrBarrier()) return kNeitherAllreduceNorBarrier;
  if (!HasTree(q.job)) return "too few ranks";
  if (!q.is_small) return kMoreThanSmall;
  return q.bytes <= MostBytes(q.job.settings) ? nullptr : "too large for a tree that is not pipelined";
}

double Seconds(const Question& q) {
  return SmallTreeSeconds(q.job.nranks(), static_cast<double>(q.bytes), q.costs.log_steps);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  if (!HasTree(job)) return;
  AddPeers(TreeChildren(rank, job.nranks()), links);
  if (rank > 0) AddPeers({TreeParent(rank)}, links);
}

size_t MemoryBytes(const AlgorithmJob& job) {
  return HasTree(job) ? TreeExchange::MemoryBytes(job.nranks(), MostBytes(job.settings)) : 0;
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* staging) {
  if (!HasTree(job)) return nullptr;
  return std::make_unique<TreeExchange>(rank, job.nranks(), MostBytes(job.settings), links, staging);
}

}  // namespace

const AlgorithmRow kTreeRow = {
    .algorithm = Algorithm::kTree,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .is_sliced = false,
};

}  // namespace annulus
