// TwoLevel: an allreduce between hosts with equally many ranks: a reduce-scatter within each host, a ring over the
// hosts for each member's share, and an allgather within each host (docs/decisions/0025-two-levels.md). Two pipelines
// run side by side.
//
// Threads: as Runner.
#pragma once

#include <array>

#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/row.h"
#include "collectives/algorithms/two_level/level_schedule.h"

namespace annulus {

extern const AlgorithmRow kTwoLevelRow;

class TwoLevel final : public PipelineRunner {
 public:
  TwoLevel(int rank, const AlgorithmJob& job, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;

 private:
  std::array<LevelSchedule, 2> schedules_;  // Within the host, between hosts.
};

}  // namespace annulus
