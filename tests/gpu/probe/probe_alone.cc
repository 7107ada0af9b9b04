#include "tests/gpu/probe/probe_alone.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/cuda/cuda_device.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/reduce_kernel.h"
#include "tests/cuda/graph_functions.h"
#include "tests/gpu/probe/registered_memory.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr size_t kFewBytes = 1000;
constexpr Nanoseconds kPatience = 5 * kSecond;
// A launch that has not returned by then counts as one that blocks.
constexpr Nanoseconds kLaunch = 50 * kMillisecond;
constexpr unsigned kPin = cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap;

bool Comes(const std::atomic<bool>& flag, Nanoseconds within) {
  const Deadline until = DeadlineAfter(within);
  while (!flag.load() && Now() < until) std::this_thread::yield();
  return flag.load();
}

// Calls gpu_probe in another process. What that prints is told on this one's output, or what is wrong.
std::string RunAlone(const std::string& driver, const std::string& what, const std::string& argument) {
  std::string arguments[] = {"gpu_probe", driver, "alone", what, argument};
  char* list[6] = {};
  for (size_t i = 0; i < 5; ++i) list[i] = arguments[i].data();
  int lines[2];
  if (pipe(lines) != 0) return "no pipe";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, lines[1], STDOUT_FILENO);
  pid_t child = -1;
  const int spawned = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, list, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(lines[1]);
  std::string said;
  char part[256];
  for (ssize_t bytes = 0; (bytes = read(lines[0], part, sizeof part)) > 0;)
    said.append(part, static_cast<size_t>(bytes));
  close(lines[0]);
  int status = 0;
  if (spawned == 0) waitpid(child, &status, 0);
  if (spawned != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return "the other process: " + said;
  std::printf("%s", said.c_str());
  return "";
}

std::string Wrong(const RealDevice& device, const char* function, cuda::Result result) {
  return result == cuda::Result::kSuccess ? "" : device.driver().ToStatus(result, function).message();
}

int Number(cuda::Result result) { return static_cast<int>(result); }

// In the first context, what a reset takes along.
struct Before {
  cuda::Device gpu = 0;
  cuda::Context context = nullptr;
  unsigned long long id = 0;
  void* pinned = nullptr;
  std::byte* memory = nullptr;
};

std::string MakeBefore(RealDevice* device, Before* before) {
  const cuda::Driver& driver = device->driver();
  if (driver->CtxGetId == nullptr) return "the driver has no cuCtxGetId";
  before->context = device->context();
  std::string wrong = Wrong(*device, "cuDeviceGet", driver->DeviceGet(&before->gpu, 0));
  if (wrong.empty()) wrong = Wrong(*device, "cuCtxGetId", driver->CtxGetId(before->context, &before->id));
  unsigned long long again = 0;
  if (wrong.empty()) wrong = Wrong(*device, "cuCtxGetId", driver->CtxGetId(before->context, &again));
  if (wrong.empty() && again != before->id) return "a context has two numbers";
  before->pinned = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (before->pinned == MAP_FAILED) return "no memory";
  std::memset(before->pinned, 3, kBytes);
  before->memory = device->Allocate(kBytes);
  const cuda::ScopedContext scope(driver, before->context);
  if (wrong.empty()) wrong = Wrong(*device, "cuMemHostRegister", driver->MemHostRegister(before->pinned, kBytes, kPin));
  return wrong;
}

std::string CheckAfter(const RealDevice& device, const Before& before) {
  const cuda::Driver& driver = device.driver();
  unsigned long long id = before.id;
  const cuda::Result told = driver->CtxGetId(before.context, &id);
  const bool is_told = told == cuda::Result::kContextIsDestroyed || told == cuda::Result::kInvalidContext ||
                       (told == cuda::Result::kSuccess && id != before.id);
  std::printf("reset: cuCtxGetId gives %d", Number(told));
  if (!is_told) return "cuCtxGetId does not tell of the reset: it gives " + std::to_string(Number(told));
  cuda::PointerPlace place;
  const Status known = driver.PlaceOf(before.memory, &place);
  std::printf(", a pointer is of type %d", known.ok() ? static_cast<int>(place.type) : -1);
  cuda::Context after = nullptr;
  std::string wrong = Wrong(device, "cuDevicePrimaryCtxRetain", driver->DevicePrimaryCtxRetain(&after, before.gpu));
  if (!wrong.empty()) return wrong;
  std::printf(", the handle is %s\n", after == before.context ? "the same" : "another one");
  wrong = Wrong(device, "cuCtxGetId", driver->CtxGetId(after, &id));
  if (wrong.empty() && id == before.id) return "the next context has the same number";
  const auto* const bytes = static_cast<const unsigned char*>(before.pinned);
  if (!std::all_of(bytes, bytes + kBytes, [](unsigned char each) { return each == 3; }))
    return "memory of the process's own has changed";
  const cuda::ScopedContext scope(driver, after);
  if (wrong.empty()) wrong = Wrong(device, "cuCtxPushCurrent", scope.status().ok() ? cuda::Result::kSuccess : told);
  if (wrong.empty()) wrong = Wrong(device, "cuMemHostRegister", driver->MemHostRegister(before.pinned, kBytes, kPin));
  if (wrong.empty()) wrong = Wrong(device, "cuMemHostUnregister", driver->MemHostUnregister(before.pinned));
  // Twice: what was retained before the reset still is.
  for (int i = 0; i < 2 && wrong.empty(); ++i)
    wrong = Wrong(device, "cuDevicePrimaryCtxRelease", driver->DevicePrimaryCtxRelease(before.gpu));
  return wrong;
}

std::string ResetHere(RealDevice* device, const std::string& driver_file) {
  Before before;
  if (std::string wrong = MakeBefore(device, &before); !wrong.empty()) return wrong;
  cuda::GraphProgram program;
  if (!program.OpenLoaded(driver_file.c_str())) return "the driver has no cuDevicePrimaryCtxReset";
  const std::string wrong = Wrong(*device, "cuDevicePrimaryCtxReset", program.DevicePrimaryCtxReset(before.gpu));
  return wrong.empty() ? CheckAfter(*device, before) : wrong;
}

// The words, what the kernel reads, and its word, a page each, in pinned memory.
struct GatedLaunch {
  uint32_t* ready = nullptr;
  uint32_t* gate = nullptr;
  std::byte* source = nullptr;
  std::byte* sum = nullptr;
  std::byte* counter = nullptr;
  cuda::Stream stream = nullptr;
  cuda::Function kernel = nullptr;
};

cuda::Result LaunchBehindGate(const RealDevice& device, const GatedLaunch& launch) {
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  cuda::KernelBatch batch;
  cuda::KernelSlice& slice = batch.slices[0];
  slice.dst[0] = launch.sum;
  slice.src[0] = slice.src[1] = launch.source;
  slice.num_sources = 2;
  slice.count = kFewBytes;
  slice.done = launch.ready + 16;
  slice.finished_blocks = reinterpret_cast<uint32_t*>(launch.counter);
  void* parameters[] = {&batch};
  cuda::Result result = driver->MemsetD8Async(cuda::ToDevice(launch.counter), 0, sizeof(uint32_t), launch.stream);
  if (result == cuda::Result::kSuccess)
    result = driver->StreamWriteValue32(launch.stream, cuda::ToDevice(launch.ready), 1, cuda::kWriteValueDefault);
  if (result == cuda::Result::kSuccess)
    result = driver->StreamWaitValue32(launch.stream, cuda::ToDevice(launch.gate), 1, cuda::kWaitValueReached);
  if (result != cuda::Result::kSuccess) return result;
  return driver->LaunchKernel(launch.kernel, 1, 1, 1, cuda::kThreadsPerBlock, 1, 1, 0, launch.stream, parameters,
                              nullptr);
}

std::string BlockedLaunchHere(RealDevice* device) {
  const cuda::Driver& driver = device->driver();
  const CudaDevice* gpu = nullptr;
  if (const Status used = device->cuda_domain()->Use(0, &gpu); !used.ok()) return used.message();
  GatedLaunch launch;
  launch.kernel = gpu->KernelFor(DataType::kUint8, ReduceOp::kSum);
  if (launch.kernel == nullptr) return "there is no kernel";
  auto* const registered = new RegisteredMemory(driver);  // Until the process ends.
  {
    const cuda::ScopedContext scope(driver, device->context());
    std::string wrong = Wrong(*device, "cuMemHostRegister", registered->Open(size_t{3} * 4096));
    if (wrong.empty())
      wrong = Wrong(*device, "cuStreamCreateWithPriority",
                    driver->StreamCreateWithPriority(&launch.stream, cuda::kStreamNonBlocking, 0));
    if (!wrong.empty()) return wrong;
  }
  launch.ready = reinterpret_cast<uint32_t*>(registered->data());
  launch.gate = launch.ready + 1024;
  launch.source = registered->data() + size_t{2} * 4096;
  launch.sum = device->Allocate(kFewBytes);
  launch.counter = device->Allocate(sizeof(uint32_t));
  std::atomic<bool> has_returned{false};
  cuda::Result result = cuda::Result::kSuccess;
  std::thread launches([&] {
    result = LaunchBehindGate(*device, launch);
    has_returned = true;
  });
  const Deadline until = DeadlineAfter(kPatience);
  while (__atomic_load_n(launch.ready, __ATOMIC_ACQUIRE) != 1 && Now() < until) std::this_thread::yield();
  const bool blocks = !Comes(has_returned, kLaunch);
  std::memset(launch.source, 7, kFewBytes);
  __atomic_store_n(launch.gate, 1, __ATOMIC_RELEASE);
  if (!Comes(has_returned, kPatience)) {
    std::printf("the launch does not return when the gate is open\n");
    std::fflush(stdout);
    _exit(1);  // The thread stays in it.
  }
  launches.join();
  std::printf("blocked launch: with CUDA_LAUNCH_BLOCKING=1 a launch behind a gate %s\n",
              blocks ? "blocks" : "does not block");
  if (std::string wrong = Wrong(*device, "a launch", result); !wrong.empty()) return wrong;
  {
    const cuda::ScopedContext scope(driver, device->context());
    if (std::string wrong = Wrong(*device, "cuStreamSynchronize", driver->StreamSynchronize(launch.stream));
        !wrong.empty())
      return wrong;
  }
  std::vector<unsigned char> sum(kFewBytes);
  device->Read(sum.data(), launch.sum, kFewBytes);
  const bool is_right = std::all_of(sum.begin(), sum.end(), [](unsigned char each) { return each == 14; });
  return is_right ? "" : "the kernel read what was there before the gate was open";
}

std::vector<unsigned char> Pattern() {
  std::vector<unsigned char> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

std::string CopyOpenedHere(RealDevice* device, const std::string& name) {
  const cuda::Driver& driver = device->driver();
  cuda::IpcMemHandle handle;
  if (name.size() != 2 * sizeof handle.bytes) return "no handle";
  for (size_t i = 0; i < sizeof handle.bytes; ++i)
    handle.bytes[i] = static_cast<unsigned char>(std::strtoul(name.substr(2 * i, 2).c_str(), nullptr, 16));
  const std::vector<unsigned char> expected = Pattern();
  std::byte* const on_gpu = device->Allocate(kBytes);
  cuda::DevicePointer opened = 0;
  cuda::Stream stream = nullptr;
  const cuda::ScopedContext scope(driver, device->context());
  RegisteredMemory registered(driver);
  std::string wrong =
      Wrong(*device, "cuIpcOpenMemHandle", driver->IpcOpenMemHandle(&opened, handle, cuda::kIpcLazyPeerAccess));
  if (wrong.empty()) wrong = Wrong(*device, "cuMemHostRegister", registered.Open(kBytes));
  if (!wrong.empty()) return wrong;
  std::byte* const pinned = registered.data();
  cuda::DevicePointer again = 0;
  const cuda::Result second = driver->IpcOpenMemHandle(&again, handle, cuda::kIpcLazyPeerAccess);
  std::printf("copies of opened memory: opened a second time the driver gives %d, %s\n", Number(second),
              second != cuda::Result::kSuccess ? "no place"
              : again == opened                ? "the same place"
                                               : "another place");
  if (second == cuda::Result::kSuccess) wrong = Wrong(*device, "cuIpcCloseMemHandle", driver->IpcCloseMemHandle(again));
  if (wrong.empty())
    wrong = Wrong(*device, "cuStreamCreateWithPriority",
                  driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0));
  for (const size_t offset : {size_t{0}, size_t{4097}}) {
    for (const size_t bytes : {kFewBytes, kBytes / 2}) {
      for (const bool to_host : {false, true}) {
        if (!wrong.empty()) return wrong;
        const cuda::DevicePointer to = to_host ? cuda::ToDevice(pinned) : cuda::ToDevice(on_gpu);
        wrong = Wrong(*device, "cuMemcpyAsync", driver->MemcpyAsync(to, opened + offset, bytes, stream));
        if (wrong.empty()) wrong = Wrong(*device, "cuStreamSynchronize", driver->StreamSynchronize(stream));
        std::vector<unsigned char> copy(bytes);
        if (to_host) {
          std::memcpy(copy.data(), pinned, bytes);
        } else {
          device->Read(copy.data(), on_gpu, bytes);
        }
        if (wrong.empty() && std::memcmp(copy.data(), expected.data() + offset, bytes) != 0)
          wrong = std::string("a copy to ") + (to_host ? "pinned memory" : "the GPU") + " is wrong";
      }
    }
  }
  if (wrong.empty()) wrong = Wrong(*device, "cuIpcCloseMemHandle", driver->IpcCloseMemHandle(opened));
  return wrong;
}

}  // namespace

std::string CheckReset(const std::string& driver) { return RunAlone(driver, "reset", ""); }

std::string CheckBlockedLaunch(const std::string& driver) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // The driver of this process has looked before.
  std::string wrong = RunAlone(driver, "launch", "");
  unsetenv("CUDA_LAUNCH_BLOCKING");
  return wrong;
}

std::string CheckCopiesOfOpened(RealDevice* device, const std::string& driver) {
  std::byte* const memory = device->Allocate(kBytes);
  device->Write(memory, Pattern().data(), kBytes);
  cuda::IpcMemHandle handle;
  std::string wrong;
  {
    const cuda::ScopedContext scope(device->driver(), device->context());
    wrong = Wrong(*device, "cuIpcGetMemHandle", device->driver()->IpcGetMemHandle(&handle, cuda::ToDevice(memory)));
  }
  std::string name;
  char digits[3];
  for (const unsigned char byte : handle.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    name += digits;
  }
  if (wrong.empty()) wrong = RunAlone(driver, "copies", name);
  device->Free(memory);
  return wrong;
}

// Nothing is given back: a reset has taken it, and the process ends.
int ProbeAlone(const std::string& driver, const std::string& what, const std::string& argument) {
  std::unique_ptr<RealDevice> device;
  const Status opened = RealDevice::Open(driver, &device);
  std::string wrong = opened.message();
  RealDevice* const own = device.release();
  if (opened.ok() && what == "reset") wrong = ResetHere(own, driver);
  if (opened.ok() && what == "launch") wrong = BlockedLaunchHere(own);
  if (opened.ok() && what == "copies") wrong = CopyOpenedHere(own, argument);
  if (!wrong.empty()) std::printf("%s\n", wrong.c_str());
  std::fflush(stdout);
  _exit(wrong.empty() ? 0 : 1);
}

}  // namespace annulus
