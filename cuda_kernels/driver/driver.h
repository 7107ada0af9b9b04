// Driver: CUDA's driver, libcuda, as this process has it. Never linked: a program that uses no GPU needs no driver, and
// one that does has loaded it before it has a device pointer.
//
// Threads: Find from one thread at a time; everything else from any thread.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "cuda_kernels/driver/driver_types.h"

namespace annulus::cuda {

// Where a device finds a pointer.
struct PointerPlace {
  MemoryType type = MemoryType::kNone;  // kNone: memory that the driver does not know. kHost: pinned or managed.
  int device = -1;                      // Number of the device, for kDevice.
  Context context = nullptr;            // That it was allocated in; null for pools and mapped memory, which have none.
  DevicePointer begin = 0;              // Start of the allocation or registration, which is contiguous.
  size_t bytes = 0;
};

class Driver {
 public:
  // Finds the driver that the process has loaded. A path in `file` is loaded instead: for tests.
  // Errors: kUnsupported with the reason: not loaded, or too old.
  static Status Find(const std::string& file, std::unique_ptr<Driver>* driver);
  // As Find, but takes one that is too old, too, if it can tell where memory lies. Then unusable() says why, and only
  // PlaceOf and version may be called.
  static Status FindAny(const std::string& file, std::unique_ptr<Driver>* driver);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // driver->MemAlloc(&memory, bytes).
  const DriverFunctions* operator->() const { return &functions_; }

  // 13000 for CUDA 13.0.
  int version() const { return version_; }
  // Why nothing can be done with it; "" otherwise.
  const std::string& unusable() const { return unusable_; }

  // Whether it has the virtual memory API, all that Annulus takes of it.
  bool has_virtual_memory() const;

  // Sets *place to what the driver knows of `pointer`. Errors: those of the driver, which may come from earlier work of
  // the program. Then it may be anything: the CPU must not touch it.
  Status PlaceOf(const void* pointer, PointerPlace* place) const;

  // Where a device is on PCI, as the system names it: "0000:17:00.0"; "" when the driver does not tell.
  std::string PciAddress(Device device) const;

  // Copies between pinned memory and a device, or within devices, in the order of the stream; the current context is
  // the stream's. `to_device`: from pinned memory to a device.
  Result Copy(void* to, const void* from, size_t bytes, bool to_device, Stream stream) const;

  // "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)". OK for kSuccess. Errors: kOutOfMemory or kSystem.
  Status ToStatus(Result result, const char* function) const;

 private:
  explicit Driver(void* handle) : handle_(handle) {}
  Status FindFunctions();
  // Those that every driver has, by their symbols.
  void FindOldFunctions();

  void* const handle_;  // Handle from dlopen.
  DriverFunctions functions_;
  int version_ = 0;
  std::string unusable_;
};

// Lets a thread call what it needs, for the time of a scope: otherwise the driver refuses to allocate and pin while any
// thread of the program captures a graph, and ends the capture. Our calls belong to no graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { driver_->ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver_->ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CaptureMode mode_ = CaptureMode::kRelaxed;  // Mode to be set next; after the constructor, the caller's own.
};

// The context in which a thread works, for the time of a scope. The caller's own comes back after it. Without an OK
// status no call may follow: it would act on the caller's context.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, Context context)
      : driver_(driver), relaxed_(driver), result_(driver->CtxPushCurrent(context)) {}
  ~ScopedContext() {
    Context own = nullptr;
    if (result_ == Result::kSuccess) driver_->CtxPopCurrent(&own);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  Status status() const { return driver_.ToStatus(result_, "cuCtxPushCurrent"); }

 private:
  const Driver& driver_;
  const RelaxedCapture relaxed_;
  const Result result_;
};

}  // namespace annulus::cuda
