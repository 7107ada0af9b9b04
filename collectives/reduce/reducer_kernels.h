// The common part of the host reducer's files: one pass over two sources, and the functions for each group of element
// types.
//
// Each file is compiled once per instruction set; they are separate files so that they compile in parallel.
// Threads: as reducer.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_kernels/reduce_types.h"

namespace annulus {

// dst[0] (and dst[1], when not null) = left op right, divided by `divisor` when that is more than 1. A destination may
// be identical to a source. With kScale, dst[0] = left times `factor`, and `right` is the same as `left`.
constexpr ReduceOp kScale = static_cast<ReduceOp>(kFirstPremulSum);
struct Pass {
  std::byte* dst[2] = {nullptr, nullptr};
  const std::byte* left = nullptr;
  const std::byte* right = nullptr;
  size_t count = 0;  // Elements.
  uint32_t divisor = 0;
  double factor = 1;
};

void CombineIntegers(const Pass& pass, DataType type, ReduceOp op);  // 16 to 64 bits.
void CombineBytes(const Pass& pass, DataType type, ReduceOp op);     // int8, uint8, which has bitwise operations.
void CombineFloats(const Pass& pass, DataType type, ReduceOp op);    // float16, bfloat16, float32, float64.
void CombineFloat8s(const Pass& pass, DataType type, ReduceOp op);
void MultiplyComplex(const Pass& pass, DataType type);

}  // namespace annulus
