// A stand-in for libibverbs that costs little: a request is carried out while it is posted, and completes at once. It
// is for measuring what lies above it; what a device may do in another order is for the provider beside it.
//
// It counts what it is asked for, and the time that it takes, so that both can be told from the rest. It checks
// nothing.
//
// Threads: what sets something up may be called from any thread; all data moves on one.
#pragma once

#include <cstdint>

#include "transport/verbs/device/verbs_api.h"

namespace annulus {

struct StraightCounts {
  uint64_t send_requests = 0;
  uint64_t send_doorbells = 0;  // Calls that post requests.
  uint64_t recv_requests = 0;
  uint64_t recv_doorbells = 0;
  uint64_t inline_requests = 0;  // Requests whose data the device copied while they were posted.
  uint64_t send_completions = 0;
  uint64_t recv_completions = 0;
  uint64_t polls = 0;
  uint64_t carried_bytes = 0;  // Headers and data.
  uint64_t calls = 0;          // All of the above calls.
  uint64_t ticks = 0;          // Time in them.
};

const VerbsApi* StraightVerbs();

// Since the program began; of the thread on which data moves.
const StraightCounts& CountsOfStraightNic();

// A clock that costs little to read; its rate is TicksPerNanosecond().
uint64_t Ticks();
double TicksPerNanosecond();

}  // namespace annulus
