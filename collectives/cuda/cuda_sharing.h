// CudaSharing: what one queue exports of this process's GPU memory, and imports of that of other ranks.
//
// Memory of cudaMalloc is exported by CUDA IPC, that of the virtual memory API by descriptors, if it was made for that;
// that of pools is not.
//
// Threads: one at a time.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/told_reasons.h"
#include "collectives/cuda/mapped/cuda_pieces.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/reduce/shared_memory.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/reduce_types.h"
#include "transport/memory/retries.h"

namespace annulus {

class CudaDevice;
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
  static constexpr size_t kMostRuns = 64;
  static constexpr size_t kMostWanted = 64;  // Two of each of sixteen ranks, and as many again.

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
  // A place of which the descriptors are needed, in the call under way.
  struct Wanted {
    const CudaDevice* device;
    SharedPlace place;
    bool is_awaited = false;  // A letter may come.
    bool is_lost = false;     // It did not.
    Status outcome = {};      // Of the mapping.
  };
  using RunOf = std::pair<uint64_t, uint64_t>;  // The process, and the number of the run there.
  // What the call under way awaits.
  struct Coming {
    FilePost post;
    std::vector<Wanted> wanted;
  };
  // What has become of letters so far.
  struct Sent {
    FileSender sender;
    Retries sends;
    std::set<uint64_t> runs;               // That somebody was sent.
    std::map<uint64_t, Retries> refusals;  // Runs of which the driver gave no descriptors.
  };
  // The allocation around `memory`; null: it cannot be exported.
  const Exported* Find(const Known& known);
  // Describes memory of the virtual memory API. Errors: kUnsupported or kSystem, why it stays here.
  Status FindPieces(const std::byte* memory, size_t bytes, int device, SharedPlace* place);
  // Whether to try to pass that run on. Errors: kUnsupported: not now; kSystem.
  Status MayPassOn(uint64_t run);
  // Finds memory of another process. Errors: as Import.
  Status Reach(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  // The same by CUDA IPC.
  Status ReachByHandle(const CudaDevice& device, const SharedPlace& place, std::byte** begin);
  // Takes the letters of that sender, one by one, and maps what is wanted of them.
  void MapLetters(uint64_t from);
  // Its descriptors did not come, or could not be awaited.
  void NoteLost(const RunOf& run);
  // Logs why memory of that GPU stays here, once.
  void TellStays(int device, const Status& why);
  // Sets *begin to where `device` finds what this process has on any GPU. Errors: as Import.
  Status ReachOwn(const CudaDevice& device, const SharedPlace& place, std::byte** begin);

  CudaDomain* const domain_;
  const ReduceOn on_;
  std::vector<Exported> exports_;                             // The latest at the end.
  std::vector<Held> held_;                                    // Mappings in use,
  std::vector<std::shared_ptr<const CudaPieces::Run>> runs_;  // and what this process maps of its own.
  ToldReasons told_;
  Sent sent_;
  Coming coming_;
  std::map<RunOf, Retries> lost_;            // What did not come.
  std::map<uint64_t, Retries> unnamed_;      // Allocations, by their numbers, to which the driver gave no handle.
  std::map<std::string, Retries> unopened_;  // Handles that the driver did not open.
};

}  // namespace annulus
