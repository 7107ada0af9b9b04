#include "collectives/algorithms/log/log_limits.h"

#include <algorithm>

namespace annulus {

bool HasLogSteps(int nranks, const PlanSettings& settings) {
  const bool between_hosts = nranks > 2 && IsBetweenHosts(settings);
  return nranks > 1 && (nranks >= settings.log_ranks || between_hosts || HasNearLogSteps(nranks, settings) ||
                        settings.algorithm == Algorithm::kLogSteps);
}

bool HasNearLogSteps(int nranks, const PlanSettings& settings) {
  return nranks >= settings.near_log_ranks && nranks <= kMaxOneHopRanks && settings.by_system_calls &&
         !IsBetweenHosts(settings);
}

size_t MostLogBytes(int nranks, const PlanSettings& settings) {
  return HasNearLogSteps(nranks, settings) ? 2 * settings.small_bytes : settings.small_bytes;
}

// Between two ranks a gather would be the one-hop exchange.
bool HasLogGather(int nranks, const PlanSettings& settings) {
  return nranks > 2 && nranks <= kMaxOneHopRanks &&
         (settings.by_system_calls || settings.algorithm == Algorithm::kLogGather);
}

size_t MostGatherBytes(const PlanSettings& settings) { return std::min(settings.gather_bytes, settings.small_bytes); }

// A step of either half moves half of the chunks, or one more.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes) {
  return static_cast<size_t>(nranks / 2 + 1) * ChunkElements(count, nranks, 0) * element_bytes;
}

}  // namespace annulus
