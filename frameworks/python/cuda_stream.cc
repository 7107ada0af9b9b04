#include "frameworks/python/cuda_stream.h"

#include <dlfcn.h>

#include <mutex>

namespace annulus_python {

namespace {

constexpr int kVersion = 12000;    // The version of CUDA whose forms of the functions these are.
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
constexpr int kRelaxed = 2;        // CU_STREAM_CAPTURE_MODE_RELAXED.
constexpr uintptr_t kLegacy = 1;   // CU_STREAM_LEGACY.

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
  int (*get_stream_context)(void* stream, void** context) = nullptr;
  int (*is_capturing)(void* stream, int* status) = nullptr;
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
         Get(find, "cuStreamGetCtx", &driver->get_stream_context) &&
         Get(find, "cuStreamIsCapturing", &driver->is_capturing) && Get(find, "cuGetErrorName", &driver->get_name);
}

// The driver, which stays once it is found. Null, with the reason: there is none.
const Driver* FindDriver(std::string* why) {
  static std::mutex mutex;
  static const Driver* found = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (found != nullptr) return found;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *why = "the program has not loaded libcuda.so.1";
  if (library == nullptr) return nullptr;
  static Driver driver;
  if (Load(library, &driver)) return found = &driver;
  dlclose(library);
  *why = "CUDA's driver is too old: 12.0 or newer is needed";
  return nullptr;
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

bool IsCaptured(uintptr_t stream) {
  std::string why;
  const Driver* const driver = FindDriver(&why);
  if (driver == nullptr || stream == 0 || stream == kLegacy) return false;  // The legacy default stream never is.
  auto* const handle = reinterpret_cast<void*>(stream);
  void* context = nullptr;
  if (driver->get_stream_context(handle, &context) != 0 || driver->push(context) != 0) return false;
  int status = 0;
  const int result = driver->is_capturing(handle, &status);
  driver->pop(&context);
  return result == 0 && status != 0;
}

std::string WaitForStream(uintptr_t address, int device, uintptr_t stream) {
  std::string failed;
  const Driver* const driver = FindDriver(&failed);
  if (driver == nullptr) return failed;
  // To ask would end the capture with an error.
  if (IsCaptured(stream)) return "its stream is captured into a CUDA graph; give the call that stream";
  int attribute = kDeviceOrdinal;
  void* value = &device;
  int handle = 0;
  int result = device < 0 ? driver->get_attributes(1, &attribute, &value, address) : 0;
  if (result != 0) return Failed(*driver, "cuPointerGetAttributes", result);
  if (device < 0) return "the driver knows no GPU of this address";
  result = driver->get_device(&handle, device);
  if (result != 0) return Failed(*driver, "cuDeviceGet", result);
  return Wait(*driver, handle, reinterpret_cast<void*>(stream));
}

}  // namespace annulus_python
