// Row of the log steps (log_exchange.h): allreduces and barriers between many ranks, or between several ranks of one
// host connected by sockets.
#include "collectives/algorithms/log/log_exchange.h"
#include "collectives/algorithms/log/log_limits.h"

namespace annulus {
namespace {

// Most bytes that a rank whose sockets lead to ranks of its own host sends in one hop, to all peers together:
// docs/decisions/0018-log-steps.md.
constexpr size_t kMostNearHopBytes = 64 * 1024;

const char* WhyNot(const Question& q) {
  const PlanSettings& settings = q.job.settings;
  const int nranks = q.job.nranks();
  if (!q.IsAllreduceOrBarrier()) return kNeitherAllreduceNorBarrier;
  if (!HasLogSteps(q.job)) return "too few ranks";
  const bool near = HasNearLogSteps(q.job);
  if (q.bytes > MostLogBytes(q.job)) return near ? "more than twice ANNULUS_SMALL_BYTES" : kMoreThanSmall;
  const bool wanted = settings.algorithm == Algorithm::kLogSteps;
  const bool hops = q.is_small && (nranks - 1) * q.bytes <= kMostNearHopBytes;
  if (near && hops && !wanted) return "one hop sends little";
  // Assume the largest type, whose chunks are padded most.
  const size_t count = (q.bytes + kMostElementBytes - 1) / kMostElementBytes;
  const bool fits = LogMessageBytes(nranks, count, kMostElementBytes) <= SlotBytes(settings);
  return fits ? nullptr : "messages larger than a slot";
}

double Seconds(const Question& q) {
  const double both = LogExchangeSeconds(q.job.nranks(), static_cast<double>(q.bytes), q.costs.log_steps);
  return q.kind == CollectiveKind::kBarrier ? both / 2 : both;
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  if (HasLogSteps(job)) AddPeers(LogPeers(rank, job.nranks()), links);
}

size_t MemoryBytes(const AlgorithmJob& job) {
  if (!HasLogSteps(job)) return 0;
  return LogExchange::MemoryBytes(job.nranks(), MostLogBytes(job));
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* staging) {
  if (!HasLogSteps(job)) return nullptr;
  return std::make_unique<LogExchange>(rank, job.nranks(), MostLogBytes(job), links, staging);
}

}  // namespace

const AlgorithmRow kLogStepsRow = {
    .algorithm = Algorithm::kLogSteps,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .is_sliced = false,
};

}  // namespace annulus
