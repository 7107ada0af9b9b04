// StagedWork: operations that the CPU does, on copies of what lies on the GPU: for user-defined functions, for host
// memory that is not pinned, and where there are no kernels.
//
// One operation at a time, piece by piece: its device operands are copied to pinned memory, the CPU works, and the
// results are copied back. Whoever waits moves it on by Advance.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_streams.h"
#include "collectives/cuda/places/operand_places.h"
#include "collectives/reduce/reducer.h"

namespace annulus {

class StagedWork {
 public:
  static constexpr int kMost = 32;  // Operations at a time.

  // Begins operation number `index`, which is not pending. `places` as of OperandPlaces.
  void Add(int index, const SliceOp& op, const std::vector<Place>& places);
  bool empty() const { return count_ == 0; }

  // Moves the work on as far as it goes without waiting, and sets *finished to the operations that became done, a bit
  // for each index. User-defined functions see the context of the caller. `word` is for the work's own use. Errors:
  // kSystem of the driver.
  Status Advance(CudaStreams* streams, int word, uint32_t* finished);

  // Forgets all operations. No copy may be under way.
  void Clear();

 private:
  enum class Phase { kBegins, kLoads, kStores };
  struct Operation {
    SliceOp op;
    std::vector<Place> places;
    size_t at = 0;     // Elements that are done.
    size_t piece = 0;  // Elements under way.
  };

  Operation& first() { return operations_[order_[begin_]]; }
  // Where operand number `i` of the piece lies for the CPU.
  std::byte* ForCpu(CudaStreams* streams, const Operation& work, size_t i, const std::byte* memory) const;
  Status Load(CudaStreams* streams, int word);
  Status Compute(CudaStreams* streams, int word);
  void EndPiece();

  std::array<Operation, kMost> operations_;
  std::array<size_t, kMost> order_{};  // A ring of indexes, oldest first.
  size_t begin_ = 0;
  size_t count_ = 0;
  Phase phase_ = Phase::kBegins;  // Phase of the oldest operation.
  uint32_t value_ = 0;            // Value of the word once the current phase is done.
  std::vector<const std::byte*> sources_;
};

}  // namespace annulus
