// CudaPieces: which memory of the virtual memory API this process has exported, and under which numbers: what buffers
// lie in, one piece or several side by side, each made by cuMemCreate.
//
// What is mapped at an address may change at any time, and the driver documents no number that tells: that of a buffer
// is the same for a whole reserved range, or may be. The handle of a piece tells, as long as it is held, since the
// driver gives the handle with which the memory was mapped. So handles of exported pieces are held, and asked for with
// each call. Memory that its owner frees is really free only when they are given back: when something else is exported
// at the same addresses, when something new is exported anywhere, or with the process's last queue.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/mapped/file_post.h"
#include "collectives/cuda/mapped/virtual_range.h"
#include "cuda_kernels/driver/driver_types.h"
#include "transport/memory/retries.h"

namespace annulus {

class CudaPieces {
 public:
  struct Piece {
    cuda::DevicePointer begin = 0;
    size_t bytes = 0;
    cuda::AllocationHandle handle = 0;
    uint64_t id = 0;  // As FilePiece::id.
  };

  // Pieces side by side, whose handles it holds.
  class Run {
   public:
    Run(const CudaDevice& device, uint64_t number) : device_(device), number_(number) {}
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    uint64_t number() const { return number_; }
    const std::vector<Piece>& pieces() const { return pieces_; }
    cuda::DevicePointer begin() const { return pieces_.front().begin; }
    size_t bytes() const { return pieces_.back().begin + pieces_.back().bytes - begin(); }
    // Adds descriptors of all pieces to the letter. Errors: kSystem of the driver.
    Status Export(FileLetter* letter) const;
    // Sets *begin to where another GPU of this process finds the pieces, as long as the run is there. What the program
    // has mapped is left as it is. Errors: kSystem or kOutOfMemory of the driver; kUnsupported: it has failed, and is
    // not tried again yet.
    Status MapFor(const CudaDevice& device, std::byte** begin) const;

   private:
    friend class CudaPieces;
    struct Mapped {
      std::unique_ptr<VirtualRange> range;  // Null: it has failed.
      Retries retries;
    };
    Status Map(const CudaDevice& device, std::unique_ptr<VirtualRange>* mapped) const;

    const CudaDevice& device_;
    uint64_t number_;
    std::vector<Piece> pieces_;
    mutable std::mutex mutex_;  // Held while the driver maps.
    // By the GPU, which after a reset is another one: what was mapped for it before is gone.
    mutable std::map<const CudaDevice*, Mapped> mapped_;
  };

  CudaPieces() = default;
  CudaPieces(const CudaPieces&) = delete;
  CudaPieces& operator=(const CudaPieces&) = delete;

  // Sets *run to the pieces in which `bytes` bytes at `memory`, on `device`, lie now. Errors: kUnsupported: more than
  // kMostFiles pieces, or none; kSystem of the driver.
  Status Find(const CudaDevice& device, const std::byte* memory, size_t bytes, std::shared_ptr<const Run>* run);
  // What Find has given under that number; null: it was forgotten.
  std::shared_ptr<const Run> At(uint64_t number);
  // Forgets everything.
  void Clear();

 private:
  static constexpr size_t kMostRuns = 64;
  using Runs = std::vector<std::shared_ptr<const Run>>;

  // Holds the pieces that lie there now. In the device's context.
  static Status Hold(const std::byte* memory, size_t bytes, Run* run);
  // Numbers a run as it was numbered before, piece by piece. With mutex_ held.
  void Number(Run* run);
  // Takes out what is not there any more, but for `fresh`.
  void Sweep(const CudaDevice& device, const Run* fresh);

  std::mutex mutex_;  // Not held while the driver is called.
  Runs runs_;         // The latest used at the end.
  uint64_t last_ = 0;
};

}  // namespace annulus
