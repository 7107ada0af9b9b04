#include "collectives/algorithms/log/log_limits.h"

#include <algorithm>

#include "collectives/core/schedule.h"

namespace annulus {
namespace {

// With more ranks than this, the one-hop exchange has too many messages: docs/decisions/0018-log-steps.md.
constexpr int kMostRanksWithoutLogSteps = kMaxOneHopRanks;
// Fewest ranks of one host, connected by sockets, for which log steps beat the one-hop exchange: the table there.
constexpr int kFewestNearRanks = 8;
// Largest call in a gather, in bytes: docs/decisions/0024-trees.md.
constexpr size_t kMostGatherBytes = 4 * 1024;

}  // namespace

bool HasLogSteps(const AlgorithmJob& job) {
  const int nranks = job.nranks();
  const bool between_hosts = nranks > 2 && job.topology.between_hosts();
  return nranks > 1 && (nranks > kMostRanksWithoutLogSteps || between_hosts || HasNearLogSteps(job) ||
                        job.settings.algorithm == Algorithm::kLogSteps);
}

bool HasNearLogSteps(const AlgorithmJob& job) {
  return job.nranks() >= kFewestNearRanks && job.nranks() <= kMaxOneHopRanks && job.topology.by_system_calls &&
         !job.topology.between_hosts();
}

size_t MostLogBytes(const AlgorithmJob& job) {
  return HasNearLogSteps(job) ? 2 * job.settings.small_bytes : job.settings.small_bytes;
}

// Between two ranks a gather would be the one-hop exchange.
bool HasLogGather(const AlgorithmJob& job) {
  return job.nranks() > 2 && job.nranks() <= kMaxOneHopRanks &&
         (job.topology.by_system_calls || job.settings.algorithm == Algorithm::kLogGather);
}

size_t MostGatherBytes(const AlgorithmJob& job) { return std::min(kMostGatherBytes, job.settings.small_bytes); }

// A step of either half moves half of the chunks, or one more.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes) {
  return static_cast<size_t>(nranks / 2 + 1) * ChunkElements(count, nranks, 0) * element_bytes;
}

}  // namespace annulus
