// The stand-in for CUDA's driver as tests open it.
//
// Threads: plain functions; the stand-in belongs to the process.
#pragma once

#include <memory>

#include "cuda_kernels/driver/driver.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus::cuda {

// The path of libcuda_stand_in.so, for Driver::Find.
std::string FakeCudaFile();

// The stand-in's control, after a Reset with these options.
FakeControl* ResetFakeCuda(const FakeOptions& options);

// The stand-in as the library opens a driver.
std::unique_ptr<Driver> OpenFakeCuda();

}  // namespace annulus::cuda
