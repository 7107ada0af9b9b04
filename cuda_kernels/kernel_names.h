// The names of the device kernels, by which they are found in the image.
//
// Threads: plain functions.
#pragma once

#include <string>

#include "cuda_kernels/reduce_types.h"

namespace annulus::cuda {

// The operations that have a kernel for each type: kSum, which serves kAvg and copies too, kProd, kMin and kMax.
constexpr int kNumKernelOps = 4;

// Derived types have none.
constexpr bool HasKernels(DataType type) { return kTypeRows[static_cast<int>(type)].plain == type; }

// "annulus_float32_sum". `op` is one of those.
inline std::string KernelName(DataType type, ReduceOp op) {
  return std::string("annulus_") + TypeName(type) + "_" + OpName(op);
}

}  // namespace annulus::cuda
