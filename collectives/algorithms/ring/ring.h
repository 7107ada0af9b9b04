// Ring: reduce-scatter and allgather along the ring of all ranks, with one pipeline per channel. It supports every
// collective that is not direct: broadcast and reduce use a chain, a barrier uses a token.
//
// Threads: as Runner.
#pragma once

#include <vector>

#include "collectives/algorithms/pipeline_runner.h"
#include "collectives/algorithms/ring/ring_schedule.h"
#include "collectives/algorithms/row.h"

namespace annulus {

extern const AlgorithmRow kRingRow;

class Ring final : public PipelineRunner {
 public:
  Ring(int rank, const AlgorithmJob& job, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;

 private:
  std::vector<AnyRingSchedule> schedules_;  // By channel.
};

}  // namespace annulus
