// CudaSharing: what one queue exports of this process's GPU memory, and imports of that of other ranks.
//
// Memory of cudaMalloc is exported by CUDA IPC, that of the virtual memory API by descriptors, if it was made for that;
// that of pools is not.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
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
  Status Await(SharedAddress* address) override;
  Status Send(const SharedPlace& place, const SharedAddress& to) override;
  void Release() override;

 private:
  static constexpr size_t kMostExports = 64;
  static constexpr size_t kMostReasons = 16;
  static constexpr size_t kMostRefused = 64;

  // An allocation whose handle is known. No two have the same number.
  struct Exported {
    uint64_t id;
    SharedPlace place;
    int device;
  };
  struct Held {
    const CudaDevice* device;
    const std::byte* begin;
  };
  // What the driver says of an address.
  struct Known {
    uint64_t id = 0;
    unsigned can_be_exported = 0;
    int device = -1;
    cuda::DevicePointer begin = 0;
    size_t bytes = 0;
  };
  // The allocation around `memory`; null: it cannot be exported.
  const Exported* Find(const Known& known);
  // Describes memory of the virtual memory API. Errors: kUnsupported or kSystem, why it stays here.
  Status FindPieces(const std::byte* memory, size_t bytes, int device, SharedPlace* place);
  // Logs why memory of that GPU stays here, once.
  void TellStays(int device, const Status& why);
  // Sets *begin to where `device` finds what another process has exported, or this one on another GPU.
  Status Map(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  Status ReachOwn(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  // Completes the place of an allocation.
  Status Name(Exported* exported) const;
  // Refuses memory that is not a GPU's, or ends before so many bytes.
  Status CheckRange(const std::byte* memory, size_t bytes) const;

  CudaDomain* const domain_;
  const ReduceOn on_;
  std::vector<Exported> exports_;                             // The latest at the end.
  std::vector<Held> held_;                                    // Mappings in use,
  std::vector<std::shared_ptr<const CudaPieces::Run>> runs_;  // and what this process maps of its own.
  std::set<std::string> told_;                                // Reasons.
  bool sends_files_ = true;                                   // Until that has failed.
  std::set<uint64_t> refused_;                                // Runs of which the driver gives no descriptors.
  FilePost post_;
  std::vector<FileLetter> letters_;
};

}  // namespace annulus
