#include "tests/cuda/fake_driver/fake_cuda.h"

#include <dlfcn.h>

#include "base/check.h"

namespace annulus::cuda {

std::string FakeCudaFile() { return "tests/cuda/fake_driver/libcuda_stand_in.so"; }

FakeControl* ResetFakeCuda(const FakeOptions& options) {
  // Never closed: it belongs to the process, as a driver does.
  void* const handle = dlopen(FakeCudaFile().c_str(), RTLD_NOW);
  ANNULUS_CHECK(handle != nullptr);
  FakeControl* const control = reinterpret_cast<GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
  control->Reset(options);
  return control;
}

std::unique_ptr<Driver> OpenFakeCuda() {
  std::unique_ptr<Driver> driver;
  ANNULUS_CHECK(Driver::Find(FakeCudaFile(), &driver).ok());
  return driver;
}

}  // namespace annulus::cuda
