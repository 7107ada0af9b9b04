// Forks, as libibverbs sees them: on kernels that do not copy a device's pages for a child it keeps them out of
// children, once a program has asked for that. That is done in earnest, by madvise, so children that a test forks show
// it.
//
// Threads: the caller holds the device's mutex, except for SetForkFunctions.
#pragma once

#include "tests/verbs/provider/simulated_nic.h"
#include "transport/verbs/device/verbs_api.h"

namespace annulus {

// The device is given memory of this process: a region, or, where `region` is null, memory of a driver's own.
void NoteMemory(SimulatedNic* device, NicRegion* region);
// That region is no longer registered.
void NoteEnd(SimulatedNic* device, const NicRegion& region);

// Sets the functions of the library for forks.
void SetForkFunctions(VerbsApi* api);

}  // namespace annulus
