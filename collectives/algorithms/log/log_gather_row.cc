// Row of the gather in log steps (log_gather.h): allreduces and barriers between few ranks connected by sockets.
#include "collectives/algorithms/log/log_exchange.h"
#include "collectives/algorithms/log/log_gather.h"
#include "collectives/algorithms/log/log_limits.h"

namespace annulus {
namespace {

const char* WhyNot(const Question& q) {
  const PlanSettings& settings = q.job.settings;
  if (!q.IsAllreduceOrBarrier()) return kNeitherAllreduceNorBarrier;
  if (q.job.nranks < 3) return "fewer than 3 ranks";
  if (q.job.nranks > kMaxOneHopRanks) return "more than 16 ranks";
  if (!HasLogGather(q.job.nranks, settings)) return "all ranks share memory";
  if (!q.is_small) return kMoreThanSmall;
  const size_t all = q.job.nranks * q.bytes;
  const bool costs = IsBetweenHosts(settings) && all - q.bytes > settings.hop_bytes;
  if (q.bytes > MostGatherBytes(settings) || costs) return "too large to be gathered";
  return all <= SlotBytes(settings) ? nullptr : "messages larger than a slot";
}

double Seconds(const Question& q) {
  return LogGatherSeconds(q.job.nranks, static_cast<double>(q.bytes), q.costs.log_steps);
}

void AddLinks(int rank, const Job& job, std::vector<NeededLink>* links) {
  if (HasLogGather(job.nranks, job.settings)) AddPeers(LogPeers(rank, job.nranks), links);
}

size_t MemoryBytes(const Job& job) {
  if (!HasLogGather(job.nranks, job.settings)) return 0;
  return LogGather::MemoryBytes(job.nranks, job.settings.gather_bytes);
}

std::unique_ptr<Runner> Make(int rank, const Job& job, const Links* links) {
  if (!HasLogGather(job.nranks, job.settings)) return nullptr;
  return std::make_unique<LogGather>(rank, job.nranks, job.settings.gather_bytes, links);
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
