// DirectSchedule: gather, scatter and all-to-all; slices go straight between the two ranks concerned, in rounds.
//
// In round k every rank sends to the rank k ahead and receives from the rank k behind; round 0 copies the own part. The
// steps are in order of (round, slice), the same order on both sides of every exchange, so the first step that is not
// done anywhere can always be done, whatever the sizes of the parts: no deadlock with two steps in flight.
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
