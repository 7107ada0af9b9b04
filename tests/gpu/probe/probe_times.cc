#include "tests/gpu/probe/probe_times.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda_kernels/kernel_image.h"
#include "cuda_kernels/kernel_names.h"
#include "cuda_kernels/reduce_kernel.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 5 * kSecond;
constexpr int kLazyMilliseconds = 500;  // Long beside a launch and the loading of a kernel.

// Two streams, an event, pinned and device memory.
class Machine {
 public:
  Machine(RealDevice* device, size_t bytes) : device_(device), scope_(device->driver(), device->context()) {
    void* pinned = nullptr;
    Do(driver()->MemHostAlloc(&pinned, 2 * bytes, cuda::kHostAllocPortable | cuda::kHostAllocDeviceMap));
    if (!ok()) return;
    pinned_ = static_cast<std::byte*>(std::memset(pinned, 0, 2 * bytes));
    memory_ = device->Allocate(2 * bytes);
    for (cuda::Stream& stream : streams_) {
      Do(driver()->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0));
    }
    Do(driver()->EventCreate(&event_, cuda::kEventWithoutTime));
    Do(driver()->MemsetD8Async(cuda::ToDevice(memory_), 0, 2 * bytes, streams_[0]));
    Synchronize();
  }
  ~Machine() {
    if (pinned_ == nullptr) return;
    for (const cuda::Stream stream : streams_) driver()->StreamDestroy(stream);
    driver()->EventDestroy(event_);
    driver()->MemFreeHost(pinned_);
    device_->Free(memory_);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const cuda::Driver& driver() const { return device_->driver(); }
  std::byte* pinned() const { return pinned_; }
  std::byte* memory() const { return memory_; }
  cuda::Stream stream(int i) const { return streams_[i]; }
  cuda::Event event() const { return event_; }
  bool ok() const { return wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }

  void Do(cuda::Result result) {
    if (result != cuda::Result::kSuccess && ok()) wrong_ = driver().ToStatus(result, "a call").message();
  }
  void Copy(int stream, std::byte* to, const std::byte* from, size_t bytes) {
    Do(driver()->MemcpyAsync(cuda::ToDevice(to), cuda::ToDevice(from), bytes, streams_[stream]));
  }
  void Synchronize() {
    for (const cuda::Stream stream : streams_) Do(driver()->StreamSynchronize(stream));
  }

 private:
  RealDevice* const device_;
  const cuda::ScopedContext scope_;
  std::byte* pinned_ = nullptr;
  std::byte* memory_ = nullptr;
  cuda::Stream streams_[2] = {};
  cuda::Event event_ = nullptr;
  std::string wrong_;
};

double MedianSeconds(int rounds, const std::function<void()>& act) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const Nanoseconds begin = Now();
    act();
    times.push_back(static_cast<double>(Now() - begin) / 1e9);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds) / 2];
}

// A kernel of the library that does nothing but store its word.
class EmptyKernel {
 public:
  EmptyKernel(Machine* machine, bool is_loaded) : machine_(machine) {
    const cuda::Driver& driver = machine->driver();
    const std::string name = cuda::KernelName(DataType::kUint8, ReduceOp::kSum);
    machine->Do(
        driver->LibraryLoadData(&library_, cuda::KernelImage().data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    cuda::Kernel kernel = nullptr;
    if (machine->ok()) machine->Do(driver->LibraryGetKernel(&kernel, library_, name.c_str()));
    if (machine->ok()) machine->Do(driver->KernelGetFunction(&function_, kernel));
    if (machine->ok() && is_loaded) machine->Do(driver->FuncLoad(function_));
  }
  ~EmptyKernel() {
    machine_->Synchronize();
    if (library_ != nullptr) machine_->driver()->LibraryUnload(library_);
  }
  EmptyKernel(const EmptyKernel&) = delete;
  EmptyKernel& operator=(const EmptyKernel&) = delete;

  // The words lie at the begin of the machine's pinned and device memory.
  cuda::Result Launch() {
    cuda::KernelBatch batch;
    cuda::KernelSlice* const slice = batch.slices;
    slice->dst[0] = machine_->memory() + 64;
    slice->src[0] = machine_->memory() + 64;
    slice->num_sources = 1;
    slice->done = word();
    slice->done_value = ++value_;
    slice->finished_blocks = reinterpret_cast<uint32_t*>(machine_->memory());
    void* parameters[] = {&batch};
    return machine_->driver()->LaunchKernel(function_, 1, 1, 1, cuda::kThreadsPerBlock, 1, 1, 0, machine_->stream(0),
                                            parameters, nullptr);
  }
  bool IsDone() const { return __atomic_load_n(word(), __ATOMIC_ACQUIRE) == value_; }

 private:
  uint32_t* word() const { return reinterpret_cast<uint32_t*>(machine_->pinned()); }

  Machine* const machine_;
  cuda::Library library_ = nullptr;
  cuda::Function function_ = nullptr;
  uint32_t value_ = 0;
};

void PrintTime(const char* name, double seconds) { std::printf("time %-38s %10.2f us\n", name, seconds * 1e6); }

void TimeKernel(Machine* machine, int rounds) {
  if (cuda::KernelImage().empty()) return static_cast<void>(std::printf("time of a launch: no kernels\n"));
  EmptyKernel kernel(machine, true);
  double launch = 0;
  const double seen = MedianSeconds(rounds, [&] {
    if (!machine->ok()) return;
    const Nanoseconds begin = Now();
    machine->Do(kernel.Launch());
    launch += static_cast<double>(Now() - begin) / 1e9;
    const Deadline until = DeadlineAfter(kPatience);
    while (machine->ok() && !kernel.IsDone()) {
      if (Now() > until) machine->Do(cuda::Result::kNotReady);
    }
  });
  PrintTime("kernel, launch (mean)", launch / rounds);
  PrintTime("kernel, launch to word", seen);
}

}  // namespace

std::string PrintTimes(RealDevice* device, int rounds) {
  Machine machine(device, 4096);
  if (!machine.ok()) return machine.wrong();
  const int on_stack = 0;
  cuda::PointerPlace place;
  PrintTime("pointer look-up, host memory",
            MedianSeconds(rounds, [&] { static_cast<void>(machine.driver().PlaceOf(&on_stack, &place)); }));
  PrintTime("pointer look-up, device memory",
            MedianSeconds(rounds, [&] { static_cast<void>(machine.driver().PlaceOf(machine.memory(), &place)); }));
  const auto down = [&] {
    machine.Copy(0, machine.pinned(), machine.memory(), 8);
    machine.Do(machine.driver()->StreamSynchronize(machine.stream(0)));
  };
  const auto up = [&] {
    machine.Copy(0, machine.memory(), machine.pinned(), 8);
    machine.Do(machine.driver()->StreamSynchronize(machine.stream(0)));
  };
  PrintTime("8 bytes from the GPU, waited for", MedianSeconds(rounds, down));
  PrintTime("8 bytes to the GPU, waited for", MedianSeconds(rounds, up));
  PrintTime("8 bytes from and to the GPU, waited for", MedianSeconds(rounds, [&] { down(), up(); }));
  PrintTime("event, record", MedianSeconds(rounds, [&] {
              machine.Do(machine.driver()->EventRecord(machine.event(), machine.stream(0)));
            }));
  PrintTime("stream, query", MedianSeconds(rounds, [&] { machine.driver()->StreamQuery(machine.stream(1)); }));
  machine.Synchronize();
  TimeKernel(&machine, rounds);
  return machine.wrong();
}

std::string PrintRates(RealDevice* device, size_t bytes, int repeats) {
  Machine machine(device, bytes);
  if (!machine.ok()) return machine.wrong();
  std::byte* const host = machine.pinned();
  std::byte* const gpu = machine.memory();
  const auto print = [&](const char* name, double factor, const std::function<void()>& act) {
    const double seconds = MedianSeconds(repeats, [&] {
      act();
      machine.Synchronize();
    });
    std::printf("rate %-38s %10zu bytes %8.2f GB/s\n", name, bytes,
                factor * static_cast<double>(bytes) / seconds / 1e9);
  };
  const auto down = [&] { machine.Copy(0, host, gpu, bytes); };
  const auto up = [&] { machine.Copy(1, gpu + bytes, host + bytes, bytes); };
  print("GPU to pinned memory", 1, down);
  print("pinned memory to GPU", 1, up);
  print("both at once, each way", 1, [&] { down(), up(); });
  print("within the GPU", 1, [&] { machine.Copy(0, gpu + bytes, gpu, bytes); });
  return machine.wrong();
}

std::string PrintLazyLoading(RealDevice* device) {
  if (cuda::KernelImage().empty()) {
    std::printf("lazy loading: no kernels\n");
    return "";
  }
  Machine machine(device, 4096);
  if (!machine.ok()) return machine.wrong();
  EmptyKernel kernel(&machine, false);
  auto* const gate = reinterpret_cast<uint32_t*>(machine.pinned() + 128);
  machine.Do(machine.driver()->StreamWaitValue32(machine.stream(1), cuda::ToDevice(gate), 1, cuda::kWaitValueReached));
  if (!machine.ok()) return machine.wrong();
  std::atomic<bool> has_launched{false};
  std::atomic<bool> has_queried{false};
  cuda::Result launched = cuda::Result::kSuccess;
  std::thread launch([&] {
    const cuda::ScopedContext scope(device->driver(), device->context());
    launched = kernel.Launch();
    has_launched = true;
  });
  poll(nullptr, 0, kLazyMilliseconds / 2);  // So that the launch has begun.
  std::thread query([&] {
    const cuda::ScopedContext scope(device->driver(), device->context());
    device->driver()->StreamQuery(machine.stream(0));
    has_queried = true;
  });
  poll(nullptr, 0, kLazyMilliseconds);
  std::printf("lazy loading: while another stream waits, the first launch %s, and another thread's call %s\n",
              has_launched ? "returns" : "BLOCKS", has_queried ? "returns" : "BLOCKS");
  __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
  launch.join();
  query.join();
  machine.Do(launched);
  return machine.wrong();
}

}  // namespace annulus
