// CudaDevice: one GPU as this process works on it: its context, which is the one of CUDA's runtime, and our kernels.
//
// Threads: Open in one thread; everything else from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/kernel_names.h"

namespace annulus {

class CudaDevice {
 public:
  // Takes the primary context of device `ordinal`, and loads the kernels of `image` into it, all of them now: a kernel
  // that is loaded by its first launch blocks every CUDA call of the process until the GPU is idle. `driver` outlives
  // it. Errors: kSystem or kOutOfMemory of the driver. Missing kernels are not an error; see kernels_missing().
  static Status Open(const cuda::Driver& driver, int ordinal, std::span<const std::byte> image,
                     std::unique_ptr<CudaDevice>* device);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const cuda::Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  // What the driver calls it.
  cuda::Device handle() const { return handle_; }
  cuda::Context context() const { return primary_.context; }
  // Whether the context was destroyed since, as cudaDeviceReset does. The next one has the same handle, so only its
  // number tells. Nothing that was in it may be used or given back any more. Asks the driver, as long as it is there;
  // false where the driver has no numbers.
  bool IsReset() const;
  // The same as far as somebody has asked.
  bool is_known_reset() const { return primary_.is_reset.load(std::memory_order_acquire); }
  // What to tell of it: kSystem.
  Status WhyReset() const;
  int multiprocessors() const { return multiprocessors_; }
  // 90 for sm_90.
  int capability() const { return capability_; }
  // Whether network cards can be given its memory, as dma-bufs.
  bool exports_memory() const { return exports_memory_; }
  // Asks the driver.
  bool Has(cuda::DeviceAttribute attribute) const {
    int value = 0;
    return driver_->DeviceGetAttribute(&value, attribute, handle_) == cuda::Result::kSuccess && value != 0;
  }
  // What it sees of what network cards write to its memory: all, what was written before a flush, or nothing.
  enum class RdmaWrites : uint8_t { kSeen, kFlushed, kHidden };
  RdmaWrites rdma_writes() const { return rdma_writes_; }
  // Whether its streams can wait for words of 64 bits.
  bool waits_for_64_bits() const { return waits_for_64_bits_; }
  // Ranks that share it have the same.
  const cuda::Uuid& uuid() const { return uuid_; }
  // "NVIDIA H200 (sm_90)".
  const std::string& name() const { return name_; }

  // The kernel of an operation; null: there is none, so the work is staged.
  cuda::Function KernelFor(DataType type, ReduceOp op) const;
  // Why there are no kernels; "" when there are.
  const std::string& kernels_missing() const { return kernels_missing_; }

 private:
  // The primary context.
  struct Primary {
    cuda::Context context = nullptr;
    unsigned long long id = 0;  // 0: the driver does not tell.
    mutable std::atomic<bool> is_reset{false};
  };

  CudaDevice(const cuda::Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status RetainContext();
  // What it can do with network cards.
  void FindRdma();
  Status LoadKernels(std::span<const std::byte> image);

  const cuda::Driver& driver_;
  const int ordinal_;
  cuda::Device handle_ = 0;
  cuda::Uuid uuid_{};
  Primary primary_;
  int multiprocessors_ = 1;
  int capability_ = 0;
  bool exports_memory_ = false;
  bool waits_for_64_bits_ = false;
  RdmaWrites rdma_writes_ = RdmaWrites::kHidden;
  std::string name_;
  cuda::Library library_ = nullptr;
  std::array<std::array<cuda::Function, kNumReduceOps>, kNumDataTypes> kernels_{};
  std::string kernels_missing_;
};

// The GPU's context in which a thread works, for the time of a scope, if it was not reset. Without an OK status no call
// may follow.
class DeviceScope {
 public:
  explicit DeviceScope(const CudaDevice& device) : device_(device) {
    if (!device.IsReset()) scope_.emplace(device.driver(), device.context());
  }
  Status status() const { return scope_.has_value() ? scope_->status() : device_.WhyReset(); }

 private:
  const CudaDevice& device_;
  std::optional<cuda::ScopedContext> scope_;
};

}  // namespace annulus
