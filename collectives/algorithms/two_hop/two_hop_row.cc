// Row of the exchange in two hops (two_hop.h): large allreduces and their halves between ranks that share memory.
#include "collectives/algorithms/two_hop/two_hop.h"

namespace annulus {
namespace {

// Whether all ranks share memory; also where the transport is not known yet.
bool ShareMemory(const Topology& topology) {
  return topology.near == nullptr || (topology.near->same_host_only && !topology.by_system_calls);
}

bool HasTwoHops(const AlgorithmJob& job) {
  if (job.nranks() <= 2 || job.nranks() > kMaxOneHopRanks || job.topology.between_hosts()) return false;
  return ShareMemory(job.topology) || job.settings.algorithm == Algorithm::kTwoHop;
}

bool GoesInHops(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllgather;
}

const char* WhyNot(const Question& q) {
  if (!GoesInHops(q.kind)) return "neither allreduce, reduce_scatter nor allgather, or part of a group";
  if (q.job.nranks() <= 2) return "fewer than three ranks";
  if (q.job.nranks() > kMaxOneHopRanks) return "more than 16 ranks";
  if (q.job.topology.between_hosts()) return "ranks on several hosts";
  if (q.is_small) return "no more than ANNULUS_SMALL_BYTES";
  return HasTwoHops(q.job) ? nullptr : "ranks that do not share memory";
}

// Smallest class of calls, by the largest size of all chunks, in which ranks ask each other what is registered.
// That costs one hop, which could not be seen in calls of 256 KiB (docs/decisions/0072-two-hops.md); smaller ones were
// not tried.
constexpr size_t kLeastBytes = 256 * 1024;

// Largest class of allgathers, counted likewise. Those of 64 MiB in all took 1.17 times as long as the ring (as above).
constexpr size_t kMostGathered = 16 * 1024 * 1024;

bool StandsInForRing(const Question& q) {
  if (q.job.topology.near == nullptr || !ShareMemory(q.job.topology)) return false;
  const size_t all = IsAllreduce(q.kind) ? q.bytes : q.bytes * static_cast<size_t>(q.job.nranks());
  return all >= kLeastBytes && !(IsAllgather(q.kind) && all > kMostGathered);
}

// A fold of more than two sources goes by blocks of 4 KiB, for each of which the function would be called.
const char* TypeWhyNot(const PlanSettings& /*settings*/, const Call& call, size_t /*element_bytes*/) {
  return IsUserOp(call.op) ? "a function of the user's" : nullptr;
}

double Seconds(const Question& q) {
  const auto bytes = static_cast<double>(q.bytes);
  if (IsAllreduce(q.kind)) return TwoHopSeconds(q.job.nranks(), bytes, q.costs.one_hop);
  return OneHopSeconds(q.job.nranks(), bytes, q.costs.one_hop);  // `bytes` is what one rank sends each other one.
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
    .type_why_not = TypeWhyNot,
    .stands_in_for_ring = StandsInForRing,
};

}  // namespace annulus
