// Group: which of the calls that were submitted together can be combined.
//
// Threads: plain functions.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "collectives/calls/request.h"

namespace annulus {

// Whether a call is added in its algorithm's own order, not in the ring's. Only calls with the same order are combined.
using HasOwnOrderFunction = std::function<bool(const CallArguments&)>;

// Returns the requests of a group as they should be queued. Allreduces of one type, operation, priority and order of
// addition are combined, in the order in which the first of each appears; all other calls stay separate. The result is
// the same on all ranks.
std::vector<std::vector<Request*>> Bundles(std::vector<Request*> collected, const HasOwnOrderFunction& has_own_order);

// Whether Bundles would combine all of these calls, none of which has a request yet. False also for calls with options
// of their own.
bool AreAlike(std::span<const CallArguments> calls);

// Whether the calls may run at the same time: none writes what another uses.
bool AreIndependent(const std::vector<Request*>& members);
bool AreIndependent(std::span<const CallArguments> calls);

}  // namespace annulus
