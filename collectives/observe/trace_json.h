// Trace as a file in Chrome's trace event format (JSON), which chrome://tracing and ui.perfetto.dev show.
//
// A process of the timeline is a rank. Its threads are the calls (collectives, waits, sleeps) and each channel (slices
// received, reduced, copied, sent); messages have tracks of their own, as several are under way at once. Times are
// those of the monotonic clock, so ranks of one host agree; otherData says how far it is from the time of day.
//
// Threads: plain functions.
#pragma once

#include <cstdio>

#include "base/clock.h"
#include "collectives/observe/trace.h"

namespace annulus {

struct TraceOwner {
  int process_rank = 0;  // The rank of this process in its first job; the timeline's pid.
  int communicator = 1;  // Which of the process's communicators with that file name.
  int rank = 0;          // In that communicator.
  int nranks = 1;
  int channels = 1;  // The next one is that of messages.
};

// Writes `content`, read at any time. Whether it worked is in ferror(file).
void WriteTraceJson(const TraceOwner& owner, const Trace::Content& content, std::FILE* file);

}  // namespace annulus
