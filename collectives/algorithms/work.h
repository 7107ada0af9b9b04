// Work: one collective as its runner sees it: the call, the user's buffers, and the links and the monitor it uses.
//
// Threads: filled before the runner starts; then constant until it is done.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/core/buffer.h"
#include "collectives/core/collective.h"
#include "collectives/core/links.h"
#include "collectives/core/schedule.h"
#include "collectives/core/segments.h"
#include "collectives/observe/monitor.h"
#include "collectives/observe/trace.h"
#include "collectives/reduce/domain_queue.h"

namespace annulus {

// Numbers that travel beside the slices of messages, in the chunk of their tags, which messages do not use otherwise.
class SliceNotes {
 public:
  // The number that goes with the next slice to be sent; 0: none.
  virtual uint32_t Next() = 0;
  // A number, not 0, has come with a slice.
  virtual void Hear(uint32_t note) = 0;

 protected:
  ~SliceNotes() = default;
};

struct StreamFold;

struct Work {
  Call call;
  ConstBuffer input;
  Buffer output;
  DataType type = DataType::kFloat32;  // kBroadcast and the like copy bytes whatever the type.
  size_t element_bytes = 1;
  ReduceOp op = ReduceOp::kSum;
  CustomReduction custom;
  uint32_t divisor = 0;  // Divisor of finished reductions; 0 = none.
  int rank = 0;
  int nranks = 1;
  const Links* links = nullptr;
  Monitor* monitor = nullptr;
  // Whether sends may wait for the peer to have read them in place.
  bool sends_in_place = true;
  // Whether the peer only copies what it gets, so that links may lend it the user's memory (InPlace::Lends).
  bool lends = false;
  // Whether the output is larger than the caches and no part of it was read recently.
  bool streams_output = false;
  // Number of times that short slices are looked for before anything else is done.
  int short_polls = 1;
  // Tensors of a group, to which the schedule's offsets refer. Null: the offsets refer to input and output.
  const Segments* segments = nullptr;
  SliceNotes* notes = nullptr;       // Null: slices carry the chunks of their steps.
  const StreamFold* fold = nullptr;  // What shared_fold has to know of a call in a stream; null: nothing.

  // User memory at an offset of the schedule, the number of contiguous bytes there, and the queue of its domain.
  struct Place {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    DomainQueue* queue = nullptr;

    MemoryKind kind() const { return KindOf(queue); }
  };
  Place InputAt(size_t offset) const {
    if (segments == nullptr) return {input.data + offset, SIZE_MAX, input.queue};
    const Segments::Place place = segments->At(offset);
    return {place.input.data, place.bytes, place.input.queue};
  }
  Place OutputAt(size_t offset) const {
    if (segments == nullptr) return {output.data + offset, SIZE_MAX, output.queue};
    const Segments::Place place = segments->At(offset);
    return {place.output.data, place.bytes, place.output.queue};
  }

  // Outcome of a slice for `peer` that was posted, by the code of its send: an error if the peer has left the link
  // without taking it. The link itself may live on meanwhile, for what has arrived over it.
  static Status OutcomeOfSend(Code code, int peer) {
    if (code == Code::kOk || code == Code::kInProgress) return Status();
    return {code, "rank " + std::to_string(peer) + " left before it took what was sent to it", peer, 0};
  }

  // Error of a slice whose data was read in the memory of `peer`, which has given up meanwhile.
  static Status GaveUpInPlace(Code code, int peer) {
    return {code, "rank " + std::to_string(peer) + " gave up while its memory was read in place", peer, 0};
  }

  // Time for the timeline; 0 when there is no timeline.
  Nanoseconds TraceClock() const { return monitor->trace() == nullptr ? 0 : Now(); }
  // Adds an event of that step's slice to the timeline, which must exist.
  void TraceSlice(TraceEvent::Kind kind, const Step& step, int channel, int peer, size_t bytes,
                  Nanoseconds begin) const;
};

}  // namespace annulus
