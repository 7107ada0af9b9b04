// Introduction: how ranks find each other without a rendezvous that all were given. Rank 0 listens at a port that the
// kernel chooses, and tells where: the program, which passes it on, or a store, where the others look it up.
//
// Threads: one; the caller's functions are called by the thread that creates the communicator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "collectives/comm/communicator.h"
#include "collectives/core/options.h"
#include "collectives/membership/job_store.h"

namespace annulus {

struct Introduction {
  std::optional<JobStore> store;
  // As annulus_listening_fn; empty: none.
  std::function<int(const std::string& address)> listening;
};

// Creates a communicator of all ranks of the job, as Communicator::Create with the rendezvous and key that come of the
// introduction. Blocks up to options.connect_timeout_ms, which on rank 0 does not count what its functions take.
//
// The store may still hold the address of an earlier communicator or an earlier start. Until the ranks have met, the
// store is asked again whether rank 0 is elsewhere. After that rank 0 may be, for its next communicator.
//
// Errors: those of Communicator::Create. kTimeout, kSystem and kProtocol as in job_store.h. kAuth: not all ranks agree
// on where the key comes from.
Status Introduce(const Introduction& introduction, const Options& options, const Resources& resources,
                 std::unique_ptr<Communicator>* communicator);

}  // namespace annulus
