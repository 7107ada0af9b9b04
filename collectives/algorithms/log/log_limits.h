// Which jobs and calls go in log steps. log_steps and log_gather look at each other's limits.
//
// Threads: pure functions.
#pragma once

#include <cstddef>

#include "collectives/core/plan_settings.h"

namespace annulus {

// Whether some calls of the job go in log steps or in a gather, so that it takes links and memory.
bool HasLogSteps(int nranks, const PlanSettings& settings);
bool HasLogGather(int nranks, const PlanSettings& settings);

// Whether ranks of one host go in log steps because sockets join them.
bool HasNearLogSteps(int nranks, const PlanSettings& settings);

// The largest call that goes in log steps: between ranks of one host they beat the ring a little longer.
size_t MostLogBytes(int nranks, const PlanSettings& settings);

// The largest call that goes in a gather.
size_t MostGatherBytes(const PlanSettings& settings);

// The largest message of an allreduce in log steps; its chunks are padded to equal size.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes);

}  // namespace annulus
