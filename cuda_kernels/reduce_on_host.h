// The device kernels on the host: the same source, run thread by thread in the order of their numbers. For tests and
// for a stand-in of the driver; slow.
//
// Threads: plain functions.
#pragma once

#include <string_view>

#include "cuda_kernels/reduce_kernel.h"

namespace annulus::cuda {

// Runs all blocks that work on one slice, and stores its done word. False: no kernel has that name.
bool RunSliceOnHost(std::string_view kernel, const KernelSlice& slice, unsigned blocks, unsigned threads_per_block);

}  // namespace annulus::cuda
