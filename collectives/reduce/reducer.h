// Host reducer: element-wise reductions and copies in host memory, by SIMD code chosen at run time.
//
// Semantics, the same for every instruction set and every split of a buffer, bit for bit:
//   * dst = a op b, with one rounding per element. Floats of 8 and 16 bits are widened to float32, combined, and
//     rounded to nearest even. Results of 8 bits, including infinities, saturate at the largest finite number.
//     Integers wrap around.
//   * A NaN operand gives the type's canonical quiet NaN: sign clear, only the top mantissa bit set (float8_e4m3 has
//     only 0x7f). So does inf - inf. The bits of a result therefore never depend on the order of operands. min and
//     max propagate NaN and order -0 before +0.
//   * An average divides the rounded sum by the number of ranks: in float32 for floats of 8 and 16 bits; towards zero
//     for integers.
//
// Buffers are aligned to their element. A destination may be identical to a source, but must not overlap it otherwise.
// Threads: all functions may be called from any thread. They do not allocate.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/annulus.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

// A reduction by a function of the user's.
struct UserReduction {
  annulus_reduce_fn function = nullptr;
  void* context = nullptr;
  void (*release)(void* context) = nullptr;  // Called when nothing uses the reduction any more; null: nothing is.
  // What the function returned when it first failed, which ends its communicator; 0: it has not.
  mutable std::atomic<int32_t> failure{0};
};

// Additions to, or a replacement of, the operations of ReduceOp, for a user-defined operation.
struct CustomReduction {
  bool scales = false;                  // A rank's own elements are first multiplied by `factor`.
  double factor = 1;                    // For an integer type, a value that the type can hold.
  const UserReduction* user = nullptr;  // If not null, combines in place of ReduceOp.
};

// One operation on a slice: dst[0] (and dst[1], when not null, and all of `more`) = src[0] op src[1] op ... op
// src[num_sources - 1], folded from the left and rounded after each step; with one source it is a copy. Source number
// `scaled_source` is first multiplied by custom.factor and rounded.
struct SliceOp {
  std::byte* dst[2] = {nullptr, nullptr};
  // Whether dst[i] is written past the caches, which pays when this processor will not read it soon. Only a hint; other
  // processors see the result as with plain stores.
  bool streams[2] = {false, false};
  std::byte* const* more = nullptr;  // num_more further destinations; alive until the work is done.
  int num_more = 0;
  const std::byte* const* src = nullptr;  // num_sources pointers, when num_sources > 2; alive until the work is done.
  const std::byte* inline_src[2] = {nullptr, nullptr};  // Used when num_sources <= 2.
  int num_sources = 0;
  size_t count = 0;  // Elements.
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t divisor = 0;  // ReduceOp::kAvg at the last hop: the number of ranks; otherwise 0.
  CustomReduction custom;
  int scaled_source = -1;  // -1: none.
  // Number of a device of the queue that reaches all operands, so that it need not look; -1: not known.
  int device = -1;
};

// Runs the operation now, on the calling thread.
void RunOnHost(const SliceOp& op);

// Names the instruction set in use, for logs and benchmarks: "AVX3", "AVX2", ...
const char* HostReducerTarget();

}  // namespace annulus
