// Row of the one-hop exchange (one_hop.h): small calls between few ranks.
#include <algorithm>

#include "collectives/algorithms/one_hop/one_hop.h"

namespace annulus {
namespace {

bool HasOneHop(const AlgorithmJob& job) { return job.nranks() > 1 && job.nranks() <= kMaxOneHopRanks; }

// Largest allreduce in one hop, in bytes. Two ranks exchange no more bytes in one hop than in a ring, so their limit is
// higher. Measured up to 64 KiB, which is the default: docs/decisions/0028-one-hop-of-two.md. One hop takes one slot.
size_t MostBytes(const AlgorithmJob& job) {
  const size_t small = job.settings.small_bytes;
  return job.nranks() != 2 ? small : std::max(small, std::min(4 * small, SlotBytes(job.settings)));
}

const char* WhyNot(const Question& q) {
  if (q.job.nranks() > kMaxOneHopRanks) return "more than 16 ranks";
  if (q.is_small) return nullptr;
  if (q.job.nranks() > 2 || q.kind != CollectiveKind::kAllreduce) return kMoreThanSmall;
  return q.bytes <= MostBytes(q.job) ? nullptr : "more than four times ANNULUS_SMALL_BYTES or a slot";
}

// Beyond small calls both of two ranks reduce the whole call, which takes too long for these types and operations.
const char* TypeWhyNot(const PlanSettings& settings, const Call& call, size_t element_bytes) {
  if (call.kind != CollectiveKind::kAllreduce || call.count * element_bytes <= settings.small_bytes) return nullptr;
  if (IsUserOp(call.op)) return "a function of the user's, more than ANNULUS_SMALL_BYTES";
  return element_bytes == 1 ? "elements of one byte, more than ANNULUS_SMALL_BYTES" : nullptr;
}

double Seconds(const Question& q) {
  return OneHopSeconds(q.job.nranks(), static_cast<double>(q.bytes), q.costs.one_hop);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasOneHop(job); ++peer) {
    if (peer != rank) links->push_back({peer, 0});
  }
}

size_t MemoryBytes(const AlgorithmJob& job) { return HasOneHop(job) ? OneHop::MemoryBytes(job.nranks()) : 0; }

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  if (!HasOneHop(job)) return nullptr;
  return std::make_unique<OneHop>(rank, job.nranks(), links);
}

}  // namespace

const AlgorithmRow kOneHopRow = {
    .algorithm = Algorithm::kOneHop,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .is_sliced = false,
    .type_why_not = TypeWhyNot,
};

}  // namespace annulus
