// Row of the exchange in two hops (two_hop.h): large allreduces between the ranks of one host.
#include "collectives/algorithms/two_hop/two_hop.h"

namespace annulus {
namespace {

bool HasTwoHops(const AlgorithmJob& job) {
  return job.nranks() > 2 && job.nranks() <= kMaxOneHopRanks && !job.topology.between_hosts();
}

const char* WhyNot(const Question& q) {
  if (!IsAllreduce(q.kind)) return "not an allreduce";
  if (q.job.nranks() <= 2) return "fewer than three ranks";
  if (q.job.nranks() > kMaxOneHopRanks) return "more than 16 ranks";
  if (q.job.topology.between_hosts()) return "ranks on several hosts";
  return q.is_small ? "no more than ANNULUS_SMALL_BYTES" : nullptr;
}

double Seconds(const Question& q) {
  return TwoHopSeconds(q.job.nranks(), static_cast<double>(q.bytes), q.costs.one_hop);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasTwoHops(job); ++peer) {
    if (peer != rank) links->push_back({peer, 0});
  }
}

size_t MemoryBytes(const AlgorithmJob& job) { return HasTwoHops(job) ? TwoHop::MemoryBytes(job) : 0; }

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  if (!HasTwoHops(job)) return nullptr;
  return std::make_unique<TwoHop>(rank, job, links);
}

}  // namespace

const AlgorithmRow kTwoHopRow = {
    .algorithm = Algorithm::kTwoHop,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .may_stream_output = false,  // The result is sent from the output.
};

}  // namespace annulus
