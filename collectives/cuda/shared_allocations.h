// Allocations of cudaMalloc that ranks of a host reach in each other: what folds and links do alike.
//
// Threads: any.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/reduce/shared_memory.h"

namespace annulus {

class CudaDevice;
class CudaDomain;

// Completes the place of an allocation of GPU `ordinal`, whose begin and size are set, by its handle of CUDA IPC.
// Errors: kSystem or kOutOfMemory of the driver.
Status NameAllocation(CudaDomain* domain, int ordinal, SharedPlace* place);

// Sets *begin to where `device` finds an allocation of this process, which may lie on any GPU: no process maps its own
// memory by a handle. Errors: kUnsupported: it has changed since, or the device does not reach it; kSystem of the
// driver.
Status ReachOwnAllocation(CudaDomain* domain, const CudaDevice& device, const SharedPlace& place, std::byte** begin);

// Refuses memory that is not a GPU's, or ends before so many bytes: what a peer says of its memory is not relied on.
// Errors: kInvalidArgument; kSystem of the driver.
Status CheckSharedRange(CudaDomain* domain, const std::byte* memory, size_t bytes);

}  // namespace annulus
