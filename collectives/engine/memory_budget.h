// MemoryBudget: what a communicator comes to hold at most, and how it keeps within a limit.
//
// Pure, and the same on every rank: fewer and smaller slots change the speed, never the bits of a result.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/choice/plan.h"
#include "transport/select/select.h"

namespace annulus {

// The links that a job may come to have, as long as it is not known which.
struct PossibleLinks {
  TransportList transports = Transports();
  TransportChoice allowed = TransportChoice::kAuto;
  TransportSettings settings;
};

// Bytes of a rank's links, buffers and schedules under these settings, requests apart. An upper bound over the
// transports and layouts of hosts that are possible.
size_t MostMemory(int nranks, const PlanSettings& settings, const PossibleLinks& possible = {});

// Makes slots smaller and fewer until MostMemory is at most `budget`; 0 stands for no limit. Errors: kInvalidArgument
// naming the least budget that will do.
Status FitMemory(int nranks, size_t budget, const PossibleLinks& possible, PlanSettings* settings);

}  // namespace annulus
