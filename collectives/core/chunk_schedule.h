// ChunkSchedule: the common part of schedules over chunks: size and position of chunks and their slices.
//
// A chunk is the data that travels along one path through the ranks: a share of the elements, a rank's part, or a whole
// buffer.
//
// Threads: immutable values.
#pragma once

#include <cstdint>

#include "collectives/core/schedule.h"

namespace annulus {

class ChunkSchedule : public Schedule {
 protected:
  ChunkSchedule() = default;
  explicit ChunkSchedule(const ScheduleParams& params) : p_(params) {}

  // Fills in what all steps have in common.
  void Reset(Step* step) const {
    *step = Step();
    step->count = p_.count;
  }
  int Ring(int position) const { return ((position % p_.nranks) + p_.nranks) % p_.nranks; }

  size_t ChunkElements(uint32_t chunk) const;
  size_t ChunkBegin(uint32_t chunk) const;
  // Slices of the largest chunk; at least 1.
  uint64_t Slices() const;
  // Fills in the range of slice `slice` of chunk `chunk`. Returns false when there is no such slice.
  bool Place(uint32_t chunk, uint64_t slice, Step* step) const;

  // Position of step number `index` in the rounds of `slices` slices, each of which passes through `phases` phases.
  struct Position {
    int phase;
    uint64_t slice;
  };
  Position Locate(size_t index, int phases, uint64_t slices) const;

  ScheduleParams p_;
};

// Slices of a part that goes straight from one rank to another; slice 0 exists even when the part is empty.
uint64_t SlicesOf(const ScheduleParams& params, const Part& part);

// Number of slices of the largest chunk that belong to one channel: slice s belongs to channel s mod channels.
uint64_t SlicesOfChannel(uint64_t slices, int channels, int channel);

// Whether slices pass along a chain of all ranks, to or from the root.
constexpr bool IsChain(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
}

}  // namespace annulus
