#include "collectives/api/process_state.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/log.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/kernel_image.h"

namespace annulus::c_api {
namespace {

// A forked child may free memory, and has only the thread that forked. Called when the library is loaded: what was
// registered last runs first before a fork, and the program may take locks there with which it calls the library.
__attribute__((constructor)) void LetChildrenFreeMemory() {
  const auto let_go = [] {
    OfProcess().memory.LetGoAfterFork();
    OfProcess().gpu_memory.LetGoAfterFork();
  };
  pthread_atfork(
      [] {
        OfProcess().gpu_memory.HoldForFork();
        OfProcess().memory.HoldForFork();
      },
      let_go, let_go);
}

}  // namespace

void ProcessState::FindDevices() {
  std::call_once(looked_for_devices, [this] {
    std::unique_ptr<cuda::Driver> driver;
    const Status status = cuda::Driver::FindAny("", &driver);
    if (!status.ok()) {
      why_no_cuda = status.message();
      return Log(LogLevel::kInfo, -1, "host memory only: %s", why_no_cuda.c_str());
    }
    why_no_cuda = driver->unusable();
    if (!why_no_cuda.empty()) Log(LogLevel::kWarn, -1, "device memory is refused: %s", why_no_cuda.c_str());
    cuda = std::make_unique<CudaDomain>(std::move(driver), cuda::KernelImage());
    domains.Add(cuda.get());
    cuda_process = getpid();
    // What a stream waits for must not outlast the program. A child of it that ends has the same words in memory, and
    // perhaps a lock that one of the program's threads had.
    std::atexit([] {
      if (getpid() == OfProcess().cuda_process) OfProcess().cuda->OpenGates();
    });
  });
}

constinit std::atomic<ProcessState*> process_state{nullptr};

ProcessState& MakeOfProcess() {
  static ProcessState& state = *std::make_unique<ProcessState>().release();
  process_state.store(&state, std::memory_order_release);
  return state;
}

// While there is no driver, nothing is decided: a communicator may find one that is loaded later.
Status ProcessState::AllocateOn(int device, size_t bytes, void** memory) {
  if (bytes == 0) return Status::Invalid("bytes is 0");
  std::unique_ptr<cuda::Driver> driver;
  ANNULUS_RETURN_IF_ERROR(cuda::Driver::Find("", &driver));
  FindDevices();
  if (cuda == nullptr) return {Code::kUnsupported, why_no_cuda};
  const Status status = gpu_memory.Allocate(cuda.get(), device, bytes, memory);
  if (status.ok()) return status;
  return {status.code(), "memory of GPU " + std::to_string(device) + ": " + status.message()};
}

Status ProcessState::UseDevice(int number) {
  const CudaDevice* device = nullptr;
  const Status status = cuda == nullptr ? Status(Code::kUnsupported, why_no_cuda) : cuda->UseNow(number, &device);
  if (status.ok()) return status;
  return {status.code(), "device (ANNULUS_DEVICE) is " + std::to_string(number) + ", but " + status.message()};
}

}  // namespace annulus::c_api
