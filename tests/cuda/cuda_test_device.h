// CudaTestDevice: CUDA's memory domain on the stand-in for its driver, as a device for tests.
//
// One at a time, since the stand-in belongs to the process. When it ends, everything must have been given back and
// nothing been done wrong; otherwise the program stops.
//
// Threads: any.
#pragma once

#include <memory>

#include "collectives/cuda/cuda_domain.h"
#include "tests/cuda/fake_driver/fake_cuda.h"
#include "tests/device/test_device.h"

namespace annulus {

class CudaTestDevice final : public TestDevice {
 public:
  explicit CudaTestDevice(const cuda::FakeOptions& options);
  ~CudaTestDevice() override;
  // What was done wrong on purpose is no reason to stop.
  void AllowMistakes() { allows_mistakes_ = true; }

  MemoryDomain* domain() override { return domain_.get(); }
  std::byte* Allocate(size_t bytes) override { return fake_->Allocate(0, bytes); }
  void Free(std::byte* device) override { fake_->Free(device); }
  void Write(std::byte* device, const void* host, size_t bytes) override { fake_->Write(device, host, bytes); }
  void Read(void* host, const std::byte* device, size_t bytes) const override { fake_->Read(host, device, bytes); }

  cuda::FakeControl* fake() const { return fake_; }

 private:
  cuda::FakeControl* const fake_;
  std::unique_ptr<CudaDomain> domain_;
  bool allows_mistakes_ = false;
};

}  // namespace annulus
