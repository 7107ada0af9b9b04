#include "collectives/algorithms/work.h"

namespace annulus {

void Work::TraceSlice(TraceEvent::Kind kind, const Step& step, int channel, int peer, size_t bytes,
                      Nanoseconds begin) const {
  TraceEvent event;
  event.kind = kind;
  event.channel = channel;
  event.peer = peer;
  event.bytes = bytes;
  event.chunk = step.chunk;
  event.slice = step.slice;
  event.call.sequence = call.sequence;
  event.begin = begin;
  const bool works = kind == TraceEvent::Kind::kReduced || kind == TraceEvent::Kind::kCopied;
  if (works) event.took = Now() - begin;
  monitor->trace()->Add(event);
}

}  // namespace annulus
