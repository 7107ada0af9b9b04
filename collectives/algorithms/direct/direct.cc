#include "collectives/algorithms/direct/direct.h"

namespace annulus {
namespace {

// All pairs of ranks exchange data.
void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasMesh(job.nranks(), job.settings); ++peer) {
    if (peer != rank) links->push_back({peer, 0});
  }
}

size_t MemoryBytes(const AlgorithmJob& job) {
  if (!HasMesh(job.nranks(), job.settings)) return 0;
  return sizeof(Direct) + Pipeline::MemoryBytes(WindowSteps(job.settings)) +
         static_cast<size_t>(job.nranks()) * (sizeof(uint64_t) + sizeof(Endpoint*));
}

std::unique_ptr<Runner> Make(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* /*staging*/) {
  if (!HasMesh(job.nranks(), job.settings)) return nullptr;
  return std::make_unique<Direct>(rank, job, links);
}

}  // namespace

const AlgorithmRow kDirectRow = {Algorithm::kDirect, nullptr, nullptr, AddLinks, MemoryBytes, Make};

Direct::Direct(int rank, const AlgorithmJob& job, const Links* links)
    : links_(links), round_ends_(job.nranks()), root_endpoint_(1) {
  pipelines_.emplace_back(0, WindowSteps(job.settings));
  for (int peer = 0; peer < job.nranks(); ++peer) {
    if (peer != rank) all_endpoints_.push_back(links->At(peer, 0));
  }
}

void Direct::Start(const ScheduleParams& params, const Work* work) {
  ScheduleParams own = params;
  FillRoundEnds(own, round_ends_.data());
  own.round_ends = round_ends_.data();
  endpoints_ = &all_endpoints_;
  if (HasRoot(params.kind) && params.rank != params.root) {
    root_endpoint_[0] = links_->At(params.root, 0);
    endpoints_ = &root_endpoint_;
  }
  schedule_ = DirectSchedule(own, 0);
  pipelines_.front().Start(&schedule_, work);
}

}  // namespace annulus
