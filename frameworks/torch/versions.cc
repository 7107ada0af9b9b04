#include "frameworks/torch/versions.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>

namespace annulus_torch {
namespace {

constexpr int kVersion = 12000;  // The version of CUDA whose form of the function this is.

// A number of CUDA's driver that is not 0 is an error.
using Find = int (*)(const char* name, void** function, int version, uint64_t flags, int* outcome);
using StreamIsCapturing = int (*)(void* stream, int* status);
using GetDevice = int (*)(int* device);

template <class Function>
Function FindInDriver(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  const auto find = reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  int outcome = 0;
  if (find == nullptr || find(name, &found, kVersion, 0, &outcome) != 0) return nullptr;
  return reinterpret_cast<Function>(found);
}

}  // namespace

bool IsCapturedByDriver(void* stream) {
  static const StreamIsCapturing is_capturing = FindInDriver<StreamIsCapturing>("cuStreamIsCapturing");
  int status = 0;
  if (is_capturing == nullptr || stream == nullptr) return false;  // The legacy default stream is never captured.
  const int result = is_capturing(stream, &status);
  TORCH_CHECK(result == 0, "Annulus: cuStreamIsCapturing: error ", result, " of CUDA");
  return status != 0;
}

bool IsCapturingHere() {
  static const auto get_device = FindInDriver<GetDevice>("cuCtxGetDevice");
  int device = 0;
  // It fails in a thread without a context, which captures nothing.
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) || get_device == nullptr || get_device(&device) != 0) return false;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return IsCapturing(guard, guard.getStream(guard.getDevice()));
}

}  // namespace annulus_torch
