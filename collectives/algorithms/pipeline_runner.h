// PipelineRunner: the common part of runners that run schedules in pipelines.
//
// Threads: as Runner.
#pragma once

#include <vector>

#include "collectives/algorithms/pipeline.h"
#include "collectives/algorithms/runner.h"

namespace annulus {

class PipelineRunner : public Runner {
 public:
  bool done() const override;
  bool WaitsFor(const Endpoint* endpoint) const override;
  int AwaitedPeer() const override;
  const std::vector<Endpoint*>& endpoints() const override { return *endpoints_; }

 protected:
  // Returns the first error, or the first mismatch when there is one.
  Status Advance(bool* moved) override;

  std::vector<Pipeline> pipelines_;
  std::vector<Endpoint*> all_endpoints_;
  const std::vector<Endpoint*>* endpoints_ = &all_endpoints_;
};

}  // namespace annulus
