// LevelSchedule: one of the two levels of an allreduce over hosts with equally many ranks: 0 within the hosts, 1
// between them.
//
// Chunk j * hosts + c is chunk c of share j. Member j of every host sums share j over its host, in the order of its
// members j+1, ..., j. The ring of all members j then sums chunk c of that share over the hosts c+1, ..., c
// (core/host_grid.h).
//
// Batch t is slices [t, t + 1) * round_slices of every chunk. The inner level's steps are
//   reduce-scatter of batch 0, of 1, allgather of 0, reduce-scatter of 2, allgather of 1, ..., allgather of the last,
// and the outer level's steps are an allreduce of each batch. So while one batch is between the hosts, the next is
// summed within them. In the order of (batch, stage), the first stage that is not done on any rank waits for nothing
// else. Each stage consists of rounds of a ring, so the rules of core/schedule.h hold here too.
//
// Threads: an immutable value.
#pragma once

#include "collectives/core/chunk_schedule.h"

namespace annulus {

class LevelSchedule final : public ChunkSchedule {
 public:
  LevelSchedule() = default;
  LevelSchedule(const ScheduleParams& params, int level);
  bool At(size_t index, Step* step) const override;

 private:
  bool InnerAt(size_t index, Step* step) const;
  bool InnerRingAt(uint64_t within, uint64_t batch, bool gathers, Step* step) const;
  bool OuterAt(size_t index, Step* step) const;
  uint64_t BatchSlices(uint64_t batch) const;
  uint64_t HalfSteps(uint64_t batch) const;
  uint64_t StepsBeforeScatter(uint64_t batch) const;
  uint64_t AllOuterSteps(uint64_t batch) const;
  int OuterPhases() const { return 2 * p_.outer.size - 1; }

  int level_ = 0;
  uint64_t slices_ = 0;  // Slices of the largest chunk.
  uint64_t batches_ = 0;
};

}  // namespace annulus
