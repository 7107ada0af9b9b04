// MemoryBudget: what a communicator comes to hold at most, and how it keeps within a limit.
//
// Pure, and the same on every rank: fewer and smaller slots change the speed, never the bits of a result.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/choice/plan.h"

namespace annulus {

// Bytes of a rank's links, buffers and schedules under these settings, requests apart. An upper bound over the
// transports: two sets of slots for each link, of which shared memory needs one.
// `tcp_sockets` is the setting: 0 = chosen.
size_t MostMemory(int nranks, const PlanSettings& settings, int tcp_sockets = 0);

// Makes slots smaller and fewer until MostMemory is at most `budget`; 0 stands for no limit. Errors: kInvalidArgument
// naming the least budget that will do.
Status FitMemory(int nranks, size_t budget, int tcp_sockets, PlanSettings* settings);

}  // namespace annulus
