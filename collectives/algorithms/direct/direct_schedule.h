// DirectSchedule: gather, scatter and all-to-all. Slices go straight between the two ranks concerned, in rounds.
//
// In round k every rank sends to the rank k ahead and receives from the rank k behind; round 0 copies the own part.
// Steps are ordered by (round, slice), with the same order on both sides of every exchange. So the first step that is
// not done on any rank can always be done, whatever the sizes of the parts: two steps in flight are enough to avoid
// deadlock.
//
// Threads: an immutable value.
#pragma once

#include "collectives/core/schedule.h"

namespace annulus {

// Sets ends[k] to the number of steps up to and including round k. ScheduleParams::round_ends points to them.
void FillRoundEnds(const ScheduleParams& params, uint64_t* ends);

class DirectSchedule final : public Schedule {
 public:
  DirectSchedule() = default;
  DirectSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;

 private:
  ScheduleParams p_;
};

}  // namespace annulus
