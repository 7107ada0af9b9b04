// GraphProgram: what programs call of CUDA's driver that work with graphs: functions that the library does not need.
//
// Threads: as DriverFunctions.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "cuda_kernels/driver/driver_types.h"

namespace annulus::cuda {

struct GraphProgram {
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters) Result(*name) parameters = nullptr;
#include "tests/cuda/graph_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION

  using Find = Result (*)(const char* name, void** function, int version, uint64_t flags, int* outcome);
  // `find` is cuGetProcAddress_v2. Returns whether the driver has all of them.
  bool Open(Find find) {
    bool has_all = true;
    int outcome = 0;
#define ANNULUS_DRIVER_FUNCTION(name, symbol, version, parameters)                                                \
  has_all &= find("cu" #name, reinterpret_cast<void**>(&this->name), version, 0, &outcome) == Result::kSuccess && \
             this->name != nullptr;
#include "tests/cuda/graph_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION
    return has_all;
  }
  // The same of the driver in `file`, which the process has loaded.
  bool OpenLoaded(const char* file) {
    void* const handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    void* const find = handle != nullptr ? dlsym(handle, "cuGetProcAddress_v2") : nullptr;
    return find != nullptr && Open(reinterpret_cast<Find>(find));
  }
};

}  // namespace annulus::cuda
