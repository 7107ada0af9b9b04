// The names of the device kernels, by which they are found in the image.
//
// Threads: plain functions.
#pragma once

#include <string>

#include "cuda_kernels/reduce_types.h"

namespace annulus::cuda {

// Whether the device has a kernel for it. A sum's serves averages and copies too; what PlainOf computes by other
// elements has none of its own.
constexpr bool HasKernel(DataType type, ReduceOp op) {
  const PlainReduction plain = PlainOf(type, op);
  return op != ReduceOp::kAvg && plain.type == type && plain.op == op;
}

// "annulus_float32_sum".
inline std::string KernelName(DataType type, ReduceOp op) {
  return std::string("annulus_") + TypeName(type) + "_" + OpName(op);
}

}  // namespace annulus::cuda
