// TwoHopSchedule: an allreduce in two hops, or one of its halves. Every rank sends each other rank its part of that
// rank's chunk; each folds its own chunk at once, from all inputs, in the order of the ring; and sends the result to
// all.
//
// What goes over a link, each way, is a sequence of items: the slices that the receiver folds, and the sender's
// results. The first `ahead` slices come first; then a result and a slice take turns; the last results come last. Both
// ends know the sequence. A slice waits for slots, and so for the folds of slices before it; a result waits for the
// slices that are ahead of it on its link. So nothing waits in a circle, whatever the number of slots.
//
// A reduce-scatter is the first hop alone: the items are the slices that the receiver folds. An allgather is the second
// hop alone: the items are the slices of the sender's input.
//
// As a Schedule it is the folds of this rank, slice by slice; of an allgather, the copies of its input to its output.
//
// Threads: an immutable value.
#pragma once

#include <cstdint>

#include "collectives/core/chunk_schedule.h"

namespace annulus {

class TwoHopSchedule final : public ChunkSchedule {
 public:
  TwoHopSchedule() = default;
  TwoHopSchedule(const ScheduleParams& params, int ahead);

  bool At(size_t slice, Step* step) const override;

  // Number of items that go over a link, each way. Some are empty.
  uint64_t items() const { return folds_ && gathers_ ? 2 * slices_ : slices_; }
  // Whether there is a first hop, after which chunks are folded.
  bool folds() const { return folds_; }

  // Sets *step to an item for `peer`, or from it. Returns false when the item is empty: then skip it. What is to be
  // sent has from_output set if it is the result of a fold; what is received is to be held for the fold, or stored.
  bool SendAt(int peer, uint64_t item, Step* step) const;
  bool ReceiveAt(int peer, uint64_t item, Step* step) const;

 private:
  struct Item {
    bool is_result;  // It goes from the chunk's owner to the others.
    uint64_t slice;
  };
  Item ItemAt(uint64_t item) const;

  bool folds_ = false;
  bool gathers_ = false;
  uint64_t slices_ = 0;  // Slices of the largest chunk.
  uint64_t ahead_ = 1;   // Slices of the first hop before the first result; at most slices_.
};

}  // namespace annulus
