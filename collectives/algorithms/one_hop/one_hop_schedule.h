// OneHopSchedule: every rank sends its data to each rank that needs it, and each rank reduces for itself.
//
// Steps 2k send to rank + k and steps 2k + 1 receive from rank - k; steps 0 and 1 concern the rank itself. Steps [2n,
// 3n) fold one chunk each in the order of the ring, so the bits are those of the ring.
//
// Threads: an immutable value.
#pragma once

#include "collectives/core/chunk_schedule.h"

namespace annulus {

class OneHopSchedule final : public ChunkSchedule {
 public:
  OneHopSchedule() = default;
  OneHopSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;

 private:
  void Size(uint32_t chunk, Step* step) const;
  bool Receive(int peer, Step* step) const;
  bool Fold(int chunk, Step* step) const;
};

}  // namespace annulus
