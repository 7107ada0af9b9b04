// The form in which a kernel takes an operation on a slice.
//
// Threads: plain functions.
#pragma once

#include <algorithm>

#include "collectives/reduce/reducer.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

// Some 66 KB under way fill PCIe, and a block has 64 KiB: more blocks would only hold multiprocessors.
constexpr unsigned kBlocksOverPcie = 16;

inline bool IsPlainCopy(const SliceOp& op) { return op.num_sources == 1 && op.scaled_source < 0; }

// The same work on elements that may have a kernel.
inline SliceOp PlainForm(SliceOp op) {
  if (op.custom.user != nullptr) return op;
  const PlainReduction plain = PlainOf(op.type, IsPlainCopy(op) ? ReduceOp::kSum : op.op);
  op.type = plain.type;
  op.op = plain.op;
  op.count *= plain.per_element;
  return op;
}

// Blocks for each of `slices` slices in a launch, of which the largest has `most_bytes` bytes.
inline unsigned BlocksFor(unsigned slices, size_t most_bytes, bool over_pcie, int multiprocessors) {
  constexpr unsigned kPerMultiprocessor = 2;
  constexpr size_t kBytesPerBlock = 64 * 1024;
  const unsigned most = over_pcie ? kBlocksOverPcie : kPerMultiprocessor * static_cast<unsigned>(multiprocessors);
  const auto wanted = static_cast<unsigned>(std::min<size_t>(most_bytes / kBytesPerBlock + 1, most));
  return std::clamp(most / slices, 1U, wanted);
}

}  // namespace annulus
