// libcuda_old.so: what a driver from before CUDA 12 has of the functions that Annulus asks for by their symbols. Memory
// from address 1 MiB to 2 MiB is GPU 0's.
//
// Threads: any.
#include "cuda_kernels/driver/driver_types.h"

extern "C" {

annulus::cuda::Result cuDriverGetVersion(int* version) {
  *version = 11020;
  return annulus::cuda::Result::kSuccess;
}
annulus::cuda::Result cuGetErrorName(annulus::cuda::Result, const char** name) {
  *name = "CUDA_ERROR_INVALID_VALUE";
  return annulus::cuda::Result::kSuccess;
}
annulus::cuda::Result cuGetErrorString(annulus::cuda::Result, const char** text) {
  *text = "invalid argument";
  return annulus::cuda::Result::kSuccess;
}
annulus::cuda::Result cuPointerGetAttributes(unsigned count, annulus::cuda::PointerAttribute* attributes, void** values,
                                             annulus::cuda::DevicePointer pointer) {
  using annulus::cuda::PointerAttribute;
  const bool is_device = pointer >= 0x100000 && pointer < 0x200000;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == PointerAttribute::kMemoryType) *static_cast<unsigned*>(values[i]) = is_device ? 2 : 0;
    if (attributes[i] == PointerAttribute::kDeviceOrdinal) *static_cast<int*>(values[i]) = is_device ? 0 : -2;
  }
  return annulus::cuda::Result::kSuccess;
}

}  // extern "C"
