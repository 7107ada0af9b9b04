// Gpu: the stand-in for CUDA's driver, as the extension with its CUDA tensors uses it (torch_cuda_stand_in.cc).
//
// Threads: any, as PyTorch's.
#pragma once

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_control.h"
#include "tests/cuda/graph_functions.h"

namespace annulus::cuda {

constexpr int kDevices = 2;

inline void Must(Result result, const char* what) {
  TORCH_CHECK(result == Result::kSuccess, "the stand-in for CUDA: ", what, ": ", static_cast<int>(result));
}

// The stand-in that the process has loaded, and what the tests ask about its use.
class Gpu {
 public:
  static Gpu& OfProcess() {
    static Gpu& gpu = *new Gpu;
    return gpu;
  }

  FakeControl& control() { return *control_; }
  const DriverFunctions* operator->() const { return &functions_; }
  const GraphProgram& graphs() const { return graphs_; }

  // Makes the device's context the calling thread's, as CUDA's runtime does, and counts the thread.
  void Enter(int device) {
    thread_local int current = -1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (current == device) return;
    Context old = nullptr;
    if (current >= 0) Must(functions_.CtxPopCurrent(&old), "pop");
    Must(functions_.CtxPushCurrent(contexts_[device]), "push");
    current = device;
  }
  size_t threads() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return threads_.size();
  }

  Stream NewStream(int device) {
    Enter(device);
    Stream stream = nullptr;
    Must(functions_.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0), "new stream");
    return stream;
  }
  // The number of the capture that the stream is in; 0: none.
  uint64_t CaptureOf(int device, Stream stream) {
    Enter(device);
    CaptureStatus status = CaptureStatus::kNone;
    uint64_t id = 0;
    Graph graph = nullptr;
    Must(capture_info_(stream, &status, &id, &graph, nullptr, nullptr, nullptr), "capture");
    return status == CaptureStatus::kNone ? 0 : id;
  }
  void BeginCapture(Stream stream) {
    Enter(0);
    Must(graphs_.StreamBeginCapture(stream, CaptureMode::kThreadLocal), "begin of a capture");
  }
  // The executable graph of what was captured.
  GraphExec EndCapture(Stream stream) {
    Enter(0);
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    Must(graphs_.StreamEndCapture(stream, &graph), "end of a capture");
    Must(graphs_.GraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    Must(graphs_.GraphDestroy(graph), "destroy");
    return exec;
  }
  // Never freed: work may use it for long.
  void* AllocatePinned(size_t bytes) {
    Enter(0);
    void* memory = nullptr;
    Must(functions_.MemHostAlloc(&memory, std::max<size_t>(bytes, 1), kHostAllocPortable), "pinned memory");
    return memory;
  }

 private:
  Gpu() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    TORCH_CHECK(library != nullptr, "load the stand-in for CUDA first");
    control_ = reinterpret_cast<GetFakeControl>(dlsym(library, "fake_cuda_control"))();
    FakeOptions options;
    options.devices = kDevices;
    control_->Reset(options);
    using Find = Result (*)(const char*, void**, int, uint64_t, int*);
    const auto find = reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress_v2"));
    int outcome = 0;
#define ANNULUS_DRIVER_FUNCTION(Name, symbol, version, parameters) \
  Must(find("cu" #Name, reinterpret_cast<void**>(&functions_.Name), version, 0, &outcome), #Name);
#include "cuda_kernels/driver/driver_functions.inc"
#undef ANNULUS_DRIVER_FUNCTION
    TORCH_CHECK(graphs_.Open(find), "the stand-in for CUDA has no graphs");
    Must(find("cuStreamGetCaptureInfo", reinterpret_cast<void**>(&capture_info_), 12030, 0, &outcome), "capture info");
    for (int device = 0; device < kDevices; ++device) {
      Device handle = 0;
      Must(functions_.DeviceGet(&handle, device), "device");
      Must(functions_.DevicePrimaryCtxRetain(&contexts_[device], handle), "context");
    }
  }

  FakeControl* control_ = nullptr;
  DriverFunctions functions_;
  GraphProgram graphs_;
  Result (*capture_info_)(Stream, CaptureStatus*, uint64_t*, Graph*, const GraphNode**, const void**,
                          size_t*) = nullptr;
  Context contexts_[kDevices] = {};
  std::mutex mutex_;
  std::set<std::thread::id> threads_;  // That have called it.
};

}  // namespace annulus::cuda
