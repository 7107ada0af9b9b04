// OneHopSchedule: every rank sends its data to each rank that needs it, and each rank reduces for itself.
//
// Steps 2k send to rank + k and steps 2k + 1 receive from rank - k; step 0 copies the own part of the output. Steps
// [2n, 3n) fold one chunk each in the order of the ring, so the bits are those of the ring.
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
  // Whether `from` has something for `to`.
  bool Sends(int from, int to) const;
  bool Send(int to, Step* step) const;
  bool CopyOwn(Step* step) const;
  bool Receive(int peer, Step* step) const;
  // The places of what goes to a rank in the input, and of what comes from one in the output.
  void PlaceInput(int to, Step* step) const;
  void PlaceOutput(int from, Step* step) const;
  void SetPart(const Part& part, size_t* offset, Step* step) const;
  bool Fold(int chunk, Step* step) const;
};

}  // namespace annulus
