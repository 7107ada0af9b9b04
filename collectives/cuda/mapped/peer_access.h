// PeerAccess: which GPUs of the host reach each other's memory, over NVLink or PCIe, as far as the driver has told, and
// which of this process were let into each other's.
//
// Threads: any.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "cuda_kernels/driver/driver_types.h"
#include "transport/memory/retries.h"

namespace annulus {

class PeerAccess {
 public:
  PeerAccess() = default;
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

  // Whether `device`, which outlives the object, can be let into the memory of the GPU with that identity. Of a GPU
  // that this process does not see (CUDA_VISIBLE_DEVICES) the driver tells nothing: that is OK. Errors: kUnsupported:
  // it cannot; kSystem of the driver.
  Status Check(const CudaDevice& device, const cuda::Uuid& of);
  // Lets `device` into what cudaMalloc gives on `of`, for as long as the process lives, as cudaDeviceEnablePeerAccess
  // does. Errors: as Check.
  Status Enable(const CudaDevice& device, const CudaDevice& of);
  // Memory of that GPU could not be mapped for `device`. If this process does not see it, that is tried again later.
  void Refuse(const CudaDevice& device, const cuda::Uuid& of, const Status& why);
  // The context of that GPU is a new one: nobody was let in yet.
  void Forget(const cuda::Uuid& of);
  // Which GPU cannot reach which, of the first two of which that was found; "": none was.
  std::string WhyNot() const;

 private:
  static constexpr size_t kMostPairs = 256;
  struct Pair {
    const CudaDevice* device;
    cuda::Uuid of;
    Status reached;
    bool is_seen;
    bool is_enabled = false;
    Retries retries = {};  // Of a GPU that is not seen.
  };

  // Asks the driver, and sets *is_seen to whether it knows that GPU.
  static Status Ask(const CudaDevice& device, const cuda::Uuid& of, bool* is_seen);
  // Null: nothing is known of them. With mutex_ held.
  Pair* Find(const CudaDevice& device, const cuda::Uuid& of);

  mutable std::mutex mutex_;  // Not held while the driver is called.
  std::vector<Pair> pairs_;
};

}  // namespace annulus
