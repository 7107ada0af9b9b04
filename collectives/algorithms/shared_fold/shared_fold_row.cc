// Row of the fold in shared device memory (shared_fold.h).
#include "collectives/algorithms/shared_fold/shared_fold.h"

namespace annulus {
namespace {

bool HasSharedFold(const AlgorithmJob& job) {
  const Topology& topology = job.topology;
  const bool shares_memory = topology.near != nullptr && topology.near->same_host_only && !topology.by_system_calls;
  return job.nranks() > 1 && job.nranks() <= kMaxOneHopRanks && topology.have_devices && shares_memory &&
         !topology.between_hosts();
}

bool GoesInOneFold(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllgather;
}

const char* WhyNot(const Question& q) {
  if (!GoesInOneFold(q.kind)) return "neither allreduce, reduce_scatter nor allgather, or part of a group";
  if (!q.job.topology.have_devices) return "a rank without a driver for GPUs";
  if (q.is_small) return "no more than ANNULUS_SMALL_BYTES";
  return HasSharedFold(q.job) ? nullptr : "more than 16 ranks, or ranks that do not share memory";
}

bool StandsInForRing(const Question& /*question*/) { return true; }

// The time of the question; the GPU's is not modelled.
double Seconds(const Question& q) { return OneHopSeconds(q.job.nranks(), 0, q.costs.one_hop); }

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasSharedFold(job); ++peer) {
    if (peer != rank) links->push_back({peer, 0});
  }
}

size_t MemoryBytes(const AlgorithmJob& job) { return HasSharedFold(job) ? SharedFold::MemoryBytes(job.nranks()) : 0; }

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  if (!HasSharedFold(job)) return nullptr;
  return std::make_unique<SharedFold>(rank, job, links);
}

}  // namespace

const AlgorithmRow kSharedFoldRow = {
    .algorithm = Algorithm::kSharedFold,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .takes_device_memory = true,
    .stands_in_for_ring = StandsInForRing,
};

}  // namespace annulus
