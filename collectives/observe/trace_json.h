// Writes a trace in Chrome's trace event format (JSON), which chrome://tracing and ui.perfetto.dev show.
//
// Each process of the timeline is a rank. Its threads are the calls (collectives, waits, sleeps) and one per channel
// (slices received, reduced, copied, sent). Messages have their own tracks, as several are in progress at once. Times
// are those of the monotonic clock, so ranks of one host agree; otherData gives its distance from the time of day.
//
// Threads: plain functions.
#pragma once

#include <cstdio>

#include "base/clock.h"
#include "collectives/observe/trace.h"

namespace annulus {

struct TraceOwner {
  int process_rank = 0;  // The rank of this process in its first job; the timeline's pid.
  int communicator = 1;  // Number of the communicator among those of the process with that file name.
  int rank = 0;          // Rank in that communicator.
  int nranks = 1;
  int channels = 1;  // Number of channels; messages have the next one.
};

// Writes `content`, which may have been read at any time. ferror(file) says whether it worked.
void WriteTraceJson(const TraceOwner& owner, const Trace::Content& content, std::FILE* file);

}  // namespace annulus
