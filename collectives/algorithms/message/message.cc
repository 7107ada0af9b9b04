#include "collectives/algorithms/message/message.h"

namespace annulus {
namespace {

void AddLinks(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links) {
  for (int peer = 0; peer < job.nranks() && HasMesh(job.nranks(), job.settings); ++peer) {
    if (peer != rank) links->push_back({peer, MessageChannel(job.settings)});
  }
}

// One runner per peer and direction, once they are used.
size_t MemoryBytes(const AlgorithmJob& job) {
  if (!HasMesh(job.nranks(), job.settings)) return 0;
  return 2 * static_cast<size_t>(job.nranks() - 1) * MessageRunner::MemoryBytes(job.settings);
}

}  // namespace

const AlgorithmRow kMessageRow = {Algorithm::kMessage, nullptr, nullptr, AddLinks, MemoryBytes, nullptr};

MessageRunner::MessageRunner(Endpoint* endpoint, const PlanSettings& settings) {
  pipelines_.emplace_back(MessageChannel(settings), WindowSteps(settings));
  all_endpoints_.push_back(endpoint);
}

void MessageRunner::Start(const ScheduleParams& params, const Work* work) {
  schedule_ = MessageSchedule(params);
  pipelines_.front().Start(&schedule_, work);
}

}  // namespace annulus
