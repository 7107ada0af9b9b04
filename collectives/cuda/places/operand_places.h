// OperandPlaces: where the operands of an operation lie, as its queue must know it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/pinned/pinned_slots.h"
#include "collectives/reduce/reducer.h"
#include "cuda_kernels/driver/driver.h"

namespace annulus {

enum class Place : uint8_t {
  kDevice,    // In the memory of a GPU, which alone can access it.
  kPinned,    // In host memory that the GPU can access.
  kPageable,  // In host memory that only the CPU can access.
  kNone,      // Nowhere: there is no such operand.
};

class OperandPlaces {
 public:
  // Whether a GPU reads [memory, memory + bytes), though the driver says that it is another's.
  using Reads = std::function<bool(int device, const std::byte* memory, size_t bytes)>;

  // Both outlive the object.
  OperandPlaces(const cuda::Driver& driver, const PinnedSlots& slots, Reads reads)
      : driver_(driver), slots_(slots), reads_(std::move(reads)) {}

  // Looks up the operands of `op`. Allocates when the slots of the process or the number of sources have grown.
  // Errors: those of the driver.
  Status Find(const SliceOp& op);

  // Places that Find found last: those of the sources in their order, then of both destinations.
  const std::vector<Place>& all() const { return places_; }
  bool Has(Place place) const;
  // Number of the GPU with an operand, -1 when there is none.
  int device() const { return device_; }
  // Whether several GPUs have operands, and none reads those of the others.
  bool is_mixed() const { return is_mixed_; }

 private:
  bool IsInSlots(const std::byte* memory, size_t bytes) const;
  Status FindOne(const std::byte* memory, size_t bytes);
  // Looks for one GPU that reads the sources of `op` on all GPUs and has the rest.
  void FindReader(const SliceOp& op);

  const cuda::Driver& driver_;
  const PinnedSlots& slots_;
  uint64_t version_ = 0;  // Version of the slots in `pinned_`.
  std::vector<PinnedSlots::Range> pinned_;
  const Reads reads_;
  std::vector<Place> places_;
  std::vector<int> devices_;  // Of each operand; -1: none.
  int device_ = -1;
  bool is_mixed_ = false;
};

// Source number `i` of an operation.
inline const std::byte* SourceOf(const SliceOp& op, int i) { return op.num_sources > 2 ? op.src[i] : op.inline_src[i]; }

}  // namespace annulus
