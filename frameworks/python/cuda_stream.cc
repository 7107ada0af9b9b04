#include "frameworks/python/cuda_stream.h"

#include <dlfcn.h>

namespace annulus_python {

namespace {

constexpr int kVersion = 12000;    // The version of CUDA whose forms of the functions these are.
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
constexpr int kRelaxed = 2;        // CU_STREAM_CAPTURE_MODE_RELAXED.

// A number of CUDA's driver that is not 0 is an error.
using Find = int (*)(const char* name, void** function, int version, uint64_t flags, int* outcome);

// The functions that are needed here.
struct Driver {
  int (*get_device)(int* device, int ordinal) = nullptr;
  int (*retain)(void** context, int device) = nullptr;
  int (*release)(int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
  int (*get_attributes)(unsigned count, int* attributes, void** values, uintptr_t address) = nullptr;
  int (*synchronize)(void* stream) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;
  int (*get_name)(int result, const char** name) = nullptr;
};

template <class Function>
bool Get(Find find, const char* name, Function* function) {
  void* found = nullptr;
  int outcome = 0;
  if (find(name, &found, kVersion, 0, &outcome) != 0) return false;
  *function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

bool Load(void* library, Driver* driver) {
  const auto find = reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress_v2"));
  return find != nullptr && Get(find, "cuDeviceGet", &driver->get_device) &&
         Get(find, "cuDevicePrimaryCtxRetain", &driver->retain) &&
         Get(find, "cuDevicePrimaryCtxRelease", &driver->release) && Get(find, "cuCtxPushCurrent", &driver->push) &&
         Get(find, "cuCtxPopCurrent", &driver->pop) && Get(find, "cuPointerGetAttributes", &driver->get_attributes) &&
         Get(find, "cuStreamSynchronize", &driver->synchronize) &&
         Get(find, "cuThreadExchangeStreamCaptureMode", &driver->exchange_capture_mode) &&
         Get(find, "cuGetErrorName", &driver->get_name);
}

std::string Failed(const Driver& driver, const char* function, int result) {
  const char* name = nullptr;
  driver.get_name(result, &name);
  return std::string(function) + ": " + (name != nullptr ? name : std::to_string(result));
}

// In the primary context of the device, which is that of CUDA's runtime.
std::string WaitInContext(const Driver& driver, int handle, void* stream) {
  void* context = nullptr;
  if (const int result = driver.retain(&context, handle); result != 0)
    return Failed(driver, "cuDevicePrimaryCtxRetain", result);
  std::string failed;
  if (const int result = driver.push(context); result != 0) {
    failed = Failed(driver, "cuCtxPushCurrent", result);
  } else {
    if (const int waited = driver.synchronize(stream); waited != 0)
      failed = Failed(driver, "cuStreamSynchronize", waited);
    driver.pop(&context);
  }
  driver.release(handle);
  return failed;
}

// Relaxed: graphs that other threads capture are left alone.
std::string Wait(const Driver& driver, int handle, void* stream) {
  int mode = kRelaxed;
  driver.exchange_capture_mode(&mode);
  std::string failed = WaitInContext(driver, handle, stream);
  driver.exchange_capture_mode(&mode);
  return failed;
}

}  // namespace

std::string WaitForStream(uintptr_t address, int device, uintptr_t stream) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return "the program has not loaded libcuda.so.1";
  Driver driver;
  std::string failed = "CUDA's driver is too old: 12.0 or newer is needed";
  if (Load(library, &driver)) {
    int attribute = kDeviceOrdinal;
    void* value = &device;
    int handle = 0;
    int result = device < 0 ? driver.get_attributes(1, &attribute, &value, address) : 0;
    if (result != 0) {
      failed = Failed(driver, "cuPointerGetAttributes", result);
    } else if (device < 0) {
      failed = "the driver knows no GPU of this address";
    } else {
      result = driver.get_device(&handle, device);
      failed =
          result == 0 ? Wait(driver, handle, reinterpret_cast<void*>(stream)) : Failed(driver, "cuDeviceGet", result);
    }
  }
  dlclose(library);
  return failed;
}

}  // namespace annulus_python
