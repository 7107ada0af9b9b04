// What gpu_probe measures of the machine itself, through the driver alone: what calls of the library are to be compared
// with.
//
// Threads: one; ProbeLazyLoading has another for a time.
#pragma once

#include <cstddef>
#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// Prints the times of: asking where a pointer lies, host and device; a copy of 8 bytes from and to the GPU that is
// waited for; an event that is recorded and asked for; a kernel that is launched, and until its word is seen. Medians
// of `rounds`. Returns "" or what failed.
std::string PrintTimes(RealDevice* device, int rounds);

// Prints the rates of copies of `bytes` bytes between pinned memory and the GPU, each way alone and both at once, and
// within the GPU. Returns "" or what failed.
std::string PrintRates(RealDevice* device, size_t bytes, int repeats);

// Prints whether the first launch of a kernel that was not loaded before returns while another stream waits at a gate,
// and whether another call of the driver gets through meanwhile. The gate opens after a time, whatever happens. Returns
// "" or what failed.
std::string PrintLazyLoading(RealDevice* device);

}  // namespace annulus
