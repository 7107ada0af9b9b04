// Direct: gather, scatter and all-to-all. Slices go straight between the two ranks concerned. No other algorithm does
// these collectives, but for small ones (one_hop).
//
// Threads: as Runner.
#pragma once

#include <vector>

#include "collectives/algorithms/direct/direct_schedule.h"
#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/row.h"

namespace annulus {

extern const AlgorithmRow kDirectRow;

class Direct final : public PipelineRunner {
 public:
  Direct(int rank, const AlgorithmJob& job, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;

 private:
  const Links* const links_;
  DirectSchedule schedule_;
  std::vector<uint64_t> round_ends_;
  std::vector<Endpoint*> root_endpoint_;  // Link to the root of the current collective.
};

}  // namespace annulus
