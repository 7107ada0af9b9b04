// Row of the gather in log steps (log_gather.h): allreduces and barriers between few ranks connected by sockets.
#include "collectives/algorithms/log/log_exchange.h"
#include "collectives/algorithms/log/log_gather.h"
#include "collectives/algorithms/log/log_limits.h"

namespace annulus {
namespace {

// Most bytes that a rank may send between hosts to save messages: docs/decisions/0024-trees.md.
constexpr size_t kMostSentBetweenHosts = 8 * 1024;

const char* WhyNot(const Question& q) {
  if (!q.IsAllreduceOrBarrier()) return kNeitherAllreduceNorBarrier;
  if (q.job.nranks() < 3) return "fewer than 3 ranks";
  if (q.job.nranks() > kMaxOneHopRanks) return "more than 16 ranks";
  if (!HasLogGather(q.job)) return "all ranks share memory";
  if (!q.is_small) return kMoreThanSmall;
  const size_t all = q.job.nranks() * q.bytes;
  const bool costs = q.job.topology.between_hosts() && all - q.bytes > kMostSentBetweenHosts;
  if (q.bytes > MostGatherBytes(q.job) || costs) return "too large to be gathered";
  return all <= SlotBytes(q.job.settings) ? nullptr : "messages larger than a slot";
}

double Seconds(const Question& q) {
  return LogGatherSeconds(q.job.nranks(), static_cast<double>(q.bytes), q.costs.log_steps);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  if (HasLogGather(job)) AddPeers(LogPeers(rank, job.nranks()), links);
}

size_t MemoryBytes(const AlgorithmJob& job) {
  if (!HasLogGather(job)) return 0;
  return LogGather::MemoryBytes(job.nranks(), MostGatherBytes(job));
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* staging) {
  if (!HasLogGather(job)) return nullptr;
  return std::make_unique<LogGather>(rank, job.nranks(), MostGatherBytes(job), links, staging);
}

}  // namespace

const AlgorithmRow kLogGatherRow = {
    .algorithm = Algorithm::kLogGather,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .is_sliced = false,
};

}  // namespace annulus
