// MemoryBudget: the most memory that a communicator may hold, and how it stays within a limit.
//
// Pure, and the same on every rank: fewer and smaller slots change the speed, never the bits of a result.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/choice/plan.h"
#include "transport/select/select.h"

namespace annulus {

// Links that a job may have, while it is not yet known which.
struct PossibleLinks {
  TransportList transports = Transports();
  TransportFilter allowed;
  TransportSettings settings = SettingsOf(TransportOptions());
};

// Bytes of a rank's links, buffers and schedules under these settings, not counting requests. An upper bound over all
// possible transports and layouts of hosts.
size_t MostMemory(int nranks, const PlanSettings& settings, const PossibleLinks& possible = {});

// Makes slots smaller and fewer until MostMemory is at most `budget`; 0 means no limit. Errors: kInvalidArgument naming
// the smallest budget that is enough.
Status FitMemory(int nranks, size_t budget, const PossibleLinks& possible, PlanSettings* settings);

}  // namespace annulus
