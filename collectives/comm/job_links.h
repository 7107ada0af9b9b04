// JobLinks: what plans must know about the links between the ranks of a job.
//
// Threads: plain functions.
#pragma once

#include <span>

#include "collectives/core/plan_settings.h"
#include "collectives/membership/peer_info.h"
#include "transport/transport_info.h"

namespace annulus {

// Sets near, far and by_system_calls of `plan`. The result is the same on every rank, because all have the same table.
void DescribeLinks(TransportList transports, std::span<const PeerInfo> peers, PlanSettings* plan);

}  // namespace annulus
