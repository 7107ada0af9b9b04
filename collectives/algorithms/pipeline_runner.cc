#include "collectives/algorithms/pipeline_runner.h"

#include <algorithm>
#include <utility>

namespace annulus {

bool PipelineRunner::done() const {
  return std::all_of(pipelines_.begin(), pipelines_.end(), [](const Pipeline& pipeline) { return pipeline.done(); });
}

bool PipelineRunner::WaitsFor(const Endpoint* endpoint) const {
  return std::any_of(pipelines_.begin(), pipelines_.end(),
                     [endpoint](const Pipeline& pipeline) { return pipeline.WaitsFor(endpoint); });
}

int PipelineRunner::AwaitedPeer() const {
  for (const Pipeline& pipeline : pipelines_) {
    const int peer = pipeline.AwaitedPeer();
    if (peer >= 0) return peer;
  }
  return -1;
}

Status PipelineRunner::Advance(bool* moved) {
  Status first;
  for (Pipeline& pipeline : pipelines_) {
    Status status = pipeline.Advance(moved);
    if (status.code() == Code::kMismatch) return status;
    if (!status.ok() && first.ok()) first = std::move(status);
  }
  return first;
}

}  // namespace annulus
