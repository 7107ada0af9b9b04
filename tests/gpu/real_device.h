// RealDevice: a GPU of this machine as a device for tests, with CUDA's memory domain over the driver itself.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/cuda/cuda_domain.h"
#include "tests/device/test_device.h"

namespace annulus {

class RealDevice final : public TestDevice {
 public:
  // Loads the driver from `file`, initialises it as a program does that uses CUDA, and takes GPU 0.
  // Errors: kUnsupported without a driver or a GPU; kSystem of the driver.
  static Status Open(const std::string& file, std::unique_ptr<RealDevice>* device);
  ~RealDevice() override;

  MemoryDomain* domain() override { return domain_.get(); }
  CudaDomain* cuda_domain() { return domain_.get(); }
  // The driver and the context that the program itself uses.
  const cuda::Driver& driver() const { return *driver_; }
  cuda::Context context() const { return context_; }

  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* device) override;
  void Write(std::byte* device, const void* host, size_t bytes) override;
  void Read(void* host, const std::byte* device, size_t bytes) const override;

 private:
  static constexpr size_t kBounceBytes = 4 << 20;

  RealDevice() = default;
  void Copy(void* to, const void* from, size_t bytes) const;

  std::unique_ptr<cuda::Driver> driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  void* bounce_ = nullptr;  // Pinned, kBounceBytes.
  std::unique_ptr<CudaDomain> domain_;
};

}  // namespace annulus
