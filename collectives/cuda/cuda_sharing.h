// CudaSharing: what one queue exports of this process's GPU memory, and imports of that of other ranks.
//
// Only memory of cudaMalloc can be exported; that of pools and of the virtual memory API cannot.
//
// Threads: one at a time.
#pragma once

#include <vector>

#include "collectives/reduce/shared_memory.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

class CudaDomain;

class CudaSharing final : public SharedMemory {
 public:
  // The domain outlives it.
  CudaSharing(CudaDomain* domain, ReduceOn on);
  ~CudaSharing();
  CudaSharing(const CudaSharing&) = delete;
  CudaSharing& operator=(const CudaSharing&) = delete;

  int Export(const std::byte* memory, size_t bytes, SharedPlace* place) override;
  bool CanReduce(int device, DataType type, ReduceOp op) const override;
  Status Import(int device, const SharedPlace& place, size_t bytes, std::byte** memory) override;
  void Release() override;

 private:
  static constexpr size_t kMostExports = 64;

  // An allocation whose handle is known. No two have the same number.
  struct Exported {
    uint64_t id;
    SharedPlace place;
    int device;
  };
  // The allocation around `memory`; null: it cannot be exported.
  const Exported* Find(const std::byte* memory);
  // Completes the place of an allocation.
  Status Name(Exported* exported) const;
  // Refuses memory that is not a GPU's, or ends before so many bytes.
  Status CheckRange(const std::byte* memory, size_t bytes) const;

  CudaDomain* const domain_;
  const ReduceOn on_;
  std::vector<Exported> exports_;  // The latest at the end.
  std::vector<const std::byte*> held_;
};

}  // namespace annulus
