// RealDevice: a GPU of this machine as a device for tests, with CUDA's memory domain over the driver itself.
//
// Threads: one at a time.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "bench/perf/perf_gpu.h"
#include "collectives/cuda/cuda_domain.h"
#include "tests/cuda/mapped_memory.h"
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
  const cuda::Driver& driver() const { return gpu_->driver(); }
  cuda::Context context() const { return gpu_->context(); }

  // Whether what is allocated from now on is of the virtual memory API, in up to nine pieces side by side, if
  // the driver has it; otherwise it is of cudaMalloc.
  void set_mapped(bool is_mapped) { is_mapped_ = is_mapped && driver().has_virtual_memory(); }

  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* device) override;
  void Write(std::byte* device, const void* host, size_t bytes) override;
  void Read(void* host, const std::byte* device, size_t bytes) const override;

 private:
  RealDevice() = default;

  std::unique_ptr<perf::Gpu> gpu_;
  std::unique_ptr<CudaDomain> domain_;
  bool is_mapped_ = false;
  std::map<std::byte*, std::unique_ptr<MappedMemory>> mapped_;  // By begin.
};

}  // namespace annulus
