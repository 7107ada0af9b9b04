// Work: one collective as its runner sees it: the call, the user's buffers, and what it runs on.
//
// Threads: filled before the runner starts; then constant until it is done.
#pragma once

#include "base/clock.h"
#include "collectives/core/collective.h"
#include "collectives/core/links.h"
#include "collectives/core/schedule.h"
#include "collectives/core/segments.h"
#include "collectives/observe/monitor.h"
#include "collectives/observe/trace.h"
#include "collectives/reduce/device.h"

namespace annulus {

struct Work {
  Call call;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DataType type = DataType::kFloat32;  // kBroadcast and the like copy bytes whatever the type.
  size_t element_bytes = 1;
  ReduceOp op = ReduceOp::kSum;
  CustomReduction custom;
  uint32_t divisor = 0;  // Of finished reductions; 0 = none.
  int rank = 0;
  int nranks = 1;
  Device* device = nullptr;
  const Links* links = nullptr;
  Monitor* monitor = nullptr;
  // Whether sends may wait for the peer to have read them in place.
  bool sends_in_place = true;
  // Whether the output is larger than the caches, and nothing of it was read lately.
  bool streams_output = false;
  // How often short slices are looked for before anything else is done.
  int short_polls = 1;
  // A group's tensors, to which the schedule's offsets refer. Null: they refer to input and output.
  const Segments* segments = nullptr;

  // The user memory at an offset of the schedule, and how much of it is in one piece.
  struct Place {
    const std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Place InputAt(size_t offset) const {
    if (segments == nullptr) return {input + offset, SIZE_MAX};
    const Segments::Place place = segments->At(offset);
    return {place.input, place.bytes};
  }
  Place OutputAt(size_t offset) const {
    if (segments == nullptr) return {output + offset, SIZE_MAX};
    const Segments::Place place = segments->At(offset);
    return {place.output, place.bytes};
  }

  // For the timeline: the time when there is one, else 0.
  Nanoseconds TraceClock() const { return monitor->trace() == nullptr ? 0 : Now(); }
  // Adds an event of that step's slice to the timeline, which there is.
  void TraceSlice(TraceEvent::Kind kind, const Step& step, int channel, int peer, size_t bytes,
                  Nanoseconds begin) const;
};

}  // namespace annulus
