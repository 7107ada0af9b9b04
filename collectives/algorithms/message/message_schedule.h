// MessageSchedule: one end of a message, slice by slice. The other end is params.root.
//
// Threads: an immutable value.
#pragma once

#include "collectives/core/schedule.h"

namespace annulus {

class MessageSchedule final : public Schedule {
 public:
  MessageSchedule() = default;
  explicit MessageSchedule(const ScheduleParams& params);
  bool At(size_t index, Step* step) const override;

 private:
  ScheduleParams p_;
};

}  // namespace annulus
