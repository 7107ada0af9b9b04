// The checks of gpu_probe: what Annulus takes for granted about a GPU and its driver, one function for each group of
// tests/cuda/fake_driver/assumptions.md. Each returns "" or what is wrong.
//
// Threads: one.
#pragma once

#include <string>

#include "collectives/reduce/domain_queue.h"
#include "tests/gpu/real_device.h"

namespace annulus {

// What the driver says of pointers into device memory, pinned memory and others.
std::string CheckPointers(RealDevice* device);
// That the device sees pinned memory where the CPU does.
std::string CheckDevice(RealDevice* device);
// That it has kernels.
std::string CheckKernels(RealDevice* device);
// That slots of private memory and of shared memory files can be pinned, and pages only once.
std::string CheckPins(RealDevice* device);
// That a done word never becomes visible before the results, over `rounds` copies and kernels of one slice,
// and some of a slice that takes all blocks.
std::string CheckDoneWords(RealDevice* device, DomainQueue* queue, int rounds);
// That 32 slices at a time, copies and kernels, on each of two queues, do what they should, and kernels on what copies
// brought.
std::string CheckBatches(RealDevice* device, int rounds);
// The host reducer's bits: all pairs of 8-bit elements, 16-bit floats with every class, and `rounds` random operations.
std::string CheckBits(RealDevice* device, DomainQueue* queue, int rounds);

}  // namespace annulus
