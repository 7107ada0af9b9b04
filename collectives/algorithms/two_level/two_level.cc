#include "collectives/algorithms/two_level/two_level.h"

#include <algorithm>

namespace annulus {
namespace {

// Smallest allreduce in two levels. This algorithm adds in its own order, so it is chosen only as described in
// docs/determinism.md. From here on it takes less time than the ring by the model with nominal costs, on the grids and
// sizes of tests/collectives/choice/algorithm_choice_test.cc: 2 to 100 hosts of 2 to 16 ranks that share memory and
// have a core each, up to 4 GiB. Below it, one hop or log steps are used. Where ranks share cores the ring can be
// faster (docs/decisions/0025).
constexpr size_t kMostOneLevelBytes = 16 * 1024;

// The neighbours of a rank on both levels, each once; none without a grid.
std::vector<int> LevelPeers(int rank, const HostGrid& grid) {
  if (!grid.exists()) return {};
  const RankRing inner = grid.Inner(rank);
  const RankRing outer = grid.Outer(rank);
  std::vector<int> peers = {inner.prev, inner.next, outer.prev, outer.next};
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

const char* WhyNot(const Question& q) {
  if (q.kind != CollectiveKind::kAllreduce) return "no allreduce of its own";
  if (!q.job.grid().exists()) return "no two hosts or more with equally many ranks, two or more each";
  return q.bytes > kMostOneLevelBytes ? nullptr : "no more than 16 KiB";
}

double Seconds(const Question& q) {
  const AlgorithmJob& job = q.job;
  const RingSlices slices = {ChunkSliceBytes(q.kind, job.nranks(), q.bytes / job.nranks(), job.settings),
                             RoundSlices(job.settings)};
  const TwoLevelShape shape = {job.grid().hosts(), job.grid().members(), static_cast<double>(job.grid().members())};
  return TwoLevelSeconds(shape, static_cast<double>(q.bytes), slices, q.costs.links.near, q.costs.links.far);
}

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  AddPeers(LevelPeers(rank, job.grid()), links);
}

size_t MemoryBytes(const AlgorithmJob& job) {
  return job.grid().exists() ? sizeof(TwoLevel) + 2 * Pipeline::MemoryBytes(WindowSteps(job.settings)) : 0;
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  if (!job.grid().exists()) return nullptr;
  return std::make_unique<TwoLevel>(rank, job, links);
}

void AddParams(const Topology& topology, ScheduleParams* params) {
  params->channels = 1;
  params->inner = topology.grid.Inner(params->rank);
  params->outer = topology.grid.Outer(params->rank);
}

}  // namespace

const AlgorithmRow kTwoLevelRow = {
    .algorithm = Algorithm::kTwoLevel,
    .why_not = WhyNot,
    .seconds = Seconds,
    .add_links = AddLinks,
    .memory_bytes = MemoryBytes,
    .make = Make,
    .may_stream_output = false,  // One level reads from the output what the other has just written.
    .serves_groups = true,
    .add_params = AddParams,
};

TwoLevel::TwoLevel(int rank, const AlgorithmJob& job, const Links* links) {
  for (size_t level = 0; level < schedules_.size(); ++level) pipelines_.emplace_back(0, WindowSteps(job.settings));
  for (const int peer : LevelPeers(rank, job.grid())) all_endpoints_.push_back(links->At(peer, 0));
}

void TwoLevel::Start(const ScheduleParams& params, const Work* work) {
  for (size_t level = 0; level < schedules_.size(); ++level) {
    schedules_[level] = LevelSchedule(params, static_cast<int>(level));
    pipelines_[level].Start(&schedules_[level], work, &pipelines_[1 - level]);
  }
}

}  // namespace annulus
