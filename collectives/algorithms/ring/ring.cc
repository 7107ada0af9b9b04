#include "collectives/algorithms/ring/ring.h"

namespace annulus {
namespace {

int Next(int rank, int nranks) { return (rank + 1) % nranks; }
int Prev(int rank, int nranks) { return (rank + nranks - 1) % nranks; }

const char* WhyNot(const Question&) { return nullptr; }

double Seconds(const Question& q) {
  const auto bytes = static_cast<double>(q.bytes);
  const int nranks = q.job.nranks();
  const LinkCosts& costs = q.costs.ring;
  const size_t chunk = IsAllreduce(q.kind) ? q.bytes / nranks : q.bytes;
  const RingSlices slices = {ChunkSliceBytes(q.kind, nranks, chunk, q.job.settings), RoundSlices(q.job.settings)};
  if (q.kind == CollectiveKind::kBarrier) return RingSeconds(nranks, 0, slices, costs);
  if (IsAllreduce(q.kind)) return RingSeconds(nranks, bytes, slices, costs);
  const bool reduces = Reduces(q.kind);
  if (IsChain(q.kind)) return ChainSeconds(nranks, bytes, slices, costs, reduces);
  return HalfRingSeconds(nranks, bytes * nranks, slices, costs, reduces);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  if (job.nranks() == 1) return;
  for (int channel = 0; channel < job.settings.channels; ++channel) {
    links->push_back({Prev(rank, job.nranks()), channel});
    links->push_back({Next(rank, job.nranks()), channel});
  }
}

size_t MemoryBytes(const AlgorithmJob& job) {
  const size_t pipeline = Pipeline::MemoryBytes(WindowSteps(job.settings)) + sizeof(AnyRingSchedule);
  return sizeof(Ring) + static_cast<size_t>(job.settings.channels) * (pipeline + 2 * sizeof(Endpoint*));
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  return std::make_unique<Ring>(rank, job, links);
}

}  // namespace

const AlgorithmRow kRingRow = {Algorithm::kRing, WhyNot, Seconds, AddLinks, MemoryBytes, Make};

Ring::Ring(int rank, const AlgorithmJob& job, const Links* links) : schedules_(job.settings.channels) {
  const int prev = Prev(rank, job.nranks());
  const int next = Next(rank, job.nranks());
  for (int channel = 0; channel < job.settings.channels; ++channel) {
    pipelines_.emplace_back(channel, WindowSteps(job.settings));
    if (job.nranks() == 1) continue;
    all_endpoints_.push_back(links->At(prev, channel));
    if (next != prev) all_endpoints_.push_back(links->At(next, channel));
  }
}

void Ring::Start(const ScheduleParams& params, const Work* work) {
  for (size_t channel = 0; channel < pipelines_.size(); ++channel) {
    AnyRingSchedule& schedule = schedules_[channel];
    schedule = MakeRingSchedule(params, static_cast<int>(channel));
    const auto start = [&](const Schedule& each) { pipelines_[channel].Start(&each, work); };
    std::visit(start, schedule);
  }
}

}  // namespace annulus
