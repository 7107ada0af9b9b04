// The checks of gpu_probe on two GPUs: what PeerAccess and folds between GPUs take for granted.
//
// Threads: one.
#pragma once

#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// Why there are no two GPUs that reach each other; "" when GPUs 0 and 1 do.
std::string PeersMissing(RealDevice* device);
// How GPUs are let into each other's memory, and that what a kernel of one has written to the other's, in memory of
// cudaMalloc and of the virtual memory API, the other's kernels read as soon as the CPU has seen the word behind it,
// `rounds` times. Returns "" or what is wrong.
std::string CheckPeers(RealDevice* device, int rounds);

}  // namespace annulus
