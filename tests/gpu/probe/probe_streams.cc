#include "tests/gpu/probe/probe_streams.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/cuda_domain.h"
#include "collectives/reduce/stream_call.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/reduce_kernel.h"
#include "tests/gpu/probe/registered_memory.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr Nanoseconds kPatience = 5 * kSecond;
// What has not returned by then counts as waiting for the gate.
constexpr Nanoseconds kFree = 100 * kMillisecond;

// Two streams, an event, words and memory, of which nothing is left when it goes.
class Parts {
 public:
  explicit Parts(RealDevice* device) : device_(device), scope_(device->driver(), device->context()) {
    Do(pinned_.Open(kWordsBytes + kBytes));
    if (pinned_.data() == nullptr) return;
    words_ = reinterpret_cast<StreamWords*>(pinned_.data());
    for (cuda::Stream& stream : streams_) {
      Do(driver()->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0));
    }
    Do(driver()->EventCreate(&event_, cuda::kEventWithoutTime));
    memory_ = device->Allocate(kBytes);
  }
  ~Parts() {
    if (words_ == nullptr) return;
    __atomic_store_n(&words_->gate, value_, __ATOMIC_RELEASE);
    for (const cuda::Stream stream : streams_) {
      driver()->StreamSynchronize(stream);
      driver()->StreamDestroy(stream);
    }
    driver()->EventDestroy(event_);
    device_->Free(memory_);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  const cuda::Driver& driver() const { return device_->driver(); }
  cuda::Stream stream(int i) const { return streams_[i]; }
  std::byte* memory() const { return memory_; }
  std::byte* pinned() const { return reinterpret_cast<std::byte*>(words_) + kWordsBytes; }
  bool ok() const { return wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }

  void Do(cuda::Result result) {
    if (result != cuda::Result::kSuccess && wrong_.empty()) wrong_ = driver().ToStatus(result, "a call").message();
  }
  void Fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void Next() { ++value_; }
  void WaitGate(int i) {
    Do(driver()->StreamWaitValue32(streams_[i], cuda::ToDevice(&words_->gate), value_, cuda::kWaitValueReached));
  }
  void WriteReady(int i) { Write(i, &words_->ready); }
  void WriteOver(int i) { Write(i, &words_->over); }
  void OpenGate() { __atomic_store_n(&words_->gate, value_, __ATOMIC_RELEASE); }
  bool IsOver() const { return __atomic_load_n(&words_->over, __ATOMIC_ACQUIRE) == value_; }
  bool ComesReady() const { return Comes(&words_->ready); }
  bool ComesOver() const { return Comes(&words_->over); }
  void Drain() {
    OpenGate();
    for (const cuda::Stream stream : streams_) Do(driver()->StreamSynchronize(stream));
  }
  // The second stream waits for what the first has got so far.
  void Join() {
    Do(driver()->EventRecord(event_, streams_[0]));
    Do(driver()->StreamWaitEvent(streams_[1], event_, 0));
  }
  void Fill(int i, std::byte* memory, int value) {
    Do(driver()->MemsetD8Async(cuda::ToDevice(memory), static_cast<unsigned char>(value), kBytes, streams_[i]));
  }
  void Copy(int i, std::byte* to, const std::byte* from) {
    Do(driver()->MemcpyAsync(cuda::ToDevice(to), cuda::ToDevice(from), kBytes, streams_[i]));
  }

 private:
  static constexpr size_t kWordsBytes = 256;

  void Write(int i, uint32_t* word) {
    Do(driver()->StreamWriteValue32(streams_[i], cuda::ToDevice(word), value_, cuda::kWriteValueDefault));
  }
  bool Comes(const uint32_t* word) const {
    const Deadline until = DeadlineAfter(kPatience);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value_) {
      if (Now() > until) return false;
    }
    return true;
  }

  RealDevice* const device_;
  const cuda::ScopedContext scope_;
  RegisteredMemory pinned_{device_->driver()};
  StreamWords* words_ = nullptr;
  cuda::Stream streams_[2] = {};
  cuda::Event event_ = nullptr;
  std::byte* memory_ = nullptr;
  uint32_t value_ = 0;
  std::string wrong_;
};

bool Holds(const std::byte* memory, int value) {
  return std::all_of(memory, memory + kBytes, [=](std::byte each) { return each == static_cast<std::byte>(value); });
}

}  // namespace

std::string CheckGates(RealDevice* device, int rounds) {
  Parts parts(device);
  for (int round = 1; round <= rounds && parts.ok(); ++round) {
    // As a call does: what comes before is in pinned memory when the word is, and what the CPU then stores is copied.
    parts.Next();
    parts.Fill(0, parts.memory(), round % 200);
    parts.Copy(0, parts.pinned(), parts.memory());
    parts.WriteReady(0);
    parts.WaitGate(0);
    parts.Copy(0, parts.memory(), parts.pinned());
    parts.WriteOver(0);
    if (!parts.ComesReady()) parts.Fail("no word came before the gate");
    if (parts.IsOver()) parts.Fail("the stream did not wait");
    if (!Holds(parts.pinned(), round % 200)) parts.Fail("a word came before what it tells of");
    std::memset(parts.pinned(), round % 200 + 1, kBytes);
    parts.OpenGate();
    if (!parts.ComesOver()) parts.Fail("the gate did not open");
    std::vector<std::byte> copy(kBytes);
    device->Read(copy.data(), parts.memory(), kBytes);
    if (!Holds(copy.data(), round % 200 + 1)) parts.Fail("the copy behind the gate took what was there before it");
  }
  return parts.wrong();
}

std::string CheckEvents(RealDevice* device, int rounds) {
  Parts parts(device);
  for (int round = 1; round <= rounds && parts.ok(); ++round) {
    parts.Next();
    parts.WaitGate(0);
    parts.Fill(0, parts.memory(), round % 200);
    parts.Join();
    parts.Copy(1, parts.pinned(), parts.memory());
    parts.WriteOver(1);
    if (parts.IsOver()) parts.Fail("a stream did not wait for the event");
    parts.OpenGate();
    if (!parts.ComesOver()) parts.Fail("an event did not come");
    if (!Holds(parts.pinned(), round % 200)) parts.Fail("a stream went on before the event");
  }
  return parts.wrong();
}

std::string CheckGatedKernels(RealDevice* device, int rounds) {
  const CudaDevice* gpu = nullptr;
  if (!device->cuda_domain()->Use(0, &gpu).ok()) return "the GPU cannot be used";
  const cuda::Function kernel = gpu->KernelFor(DataType::kUint8, ReduceOp::kSum);
  if (kernel == nullptr) return "there is no kernel";
  Parts parts(device);
  std::byte* const sum = device->Allocate(kBytes);
  std::byte* const counter = device->Allocate(kBytes);
  parts.Fill(0, counter, 0);
  for (int round = 1; round <= rounds && parts.ok(); ++round) {
    parts.Next();
    parts.WaitGate(0);
    cuda::KernelBatch batch;
    cuda::KernelSlice& slice = batch.slices[0];
    slice.dst[0] = sum;
    slice.src[0] = slice.src[1] = parts.memory();
    slice.num_sources = 2;
    slice.count = kBytes;
    slice.done = reinterpret_cast<uint32_t*>(parts.pinned());
    slice.finished_blocks = reinterpret_cast<uint32_t*>(counter);
    void* parameters[] = {&batch};
    parts.Do(parts.driver()->LaunchKernel(kernel, 8, 1, 1, cuda::kThreadsPerBlock, 1, 1, 0, parts.stream(0), parameters,
                                          nullptr));
    parts.WriteOver(0);
    parts.Fill(1, parts.memory(), round % 100);
    parts.Do(parts.driver()->StreamSynchronize(parts.stream(1)));
    if (parts.IsOver()) parts.Fail("the kernel did not wait");
    parts.OpenGate();
    if (!parts.ComesOver()) parts.Fail("the gate did not open");
    std::vector<std::byte> copy(kBytes);
    device->Read(copy.data(), sum, kBytes);
    if (!Holds(copy.data(), 2 * (round % 100))) parts.Fail("the kernel behind the gate read what was there before it");
  }
  parts.Drain();
  device->Free(sum);
  device->Free(counter);
  return parts.wrong();
}

std::string CheckStreams(RealDevice* device) {
  Parts parts(device);
  cuda::Context context = nullptr;
  cuda::Device current = 0;
  cuda::Device first = 0;
  parts.Do(parts.driver()->StreamGetCtx(parts.stream(0), &context));
  if (context != device->context()) parts.Fail("a stream is not of the context in which it was made");
  parts.Do(parts.driver()->CtxGetDevice(&current));
  parts.Do(parts.driver()->DeviceGet(&first, 0));
  if (current != first) parts.Fail("the current device is not the context's");
  for (const cuda::Stream stream :
       {parts.stream(0), cuda::Stream{nullptr}, cuda::LegacyStream(), cuda::ThreadStream()}) {
    cuda::CaptureStatus status = cuda::CaptureStatus::kActive;
    parts.Do(parts.driver()->StreamIsCapturing(stream, &status));
    if (status != cuda::CaptureStatus::kNone) parts.Fail("a stream of which no graph is made is captured");
  }
  return parts.wrong();
}

std::string CheckFrees(RealDevice* device) {
  Parts parts(device);
  std::byte* const memory = device->Allocate(kBytes);
  auto registered = std::make_unique<RegisteredMemory>(device->driver());
  parts.Do(registered->Open(kBytes));
  parts.Next();
  parts.WaitGate(0);
  parts.WriteOver(0);
  std::atomic<int> freed{0};
  std::thread frees([&] {
    const cuda::ScopedContext scope(device->driver(), device->context());
    registered.reset();
    ++freed;
    device->Free(memory);
    ++freed;
  });
  const Deadline until = DeadlineAfter(kFree);
  while (freed.load() < 2 && Now() < until) std::this_thread::yield();
  std::printf("frees: beside a closed gate cuMemHostUnregister %s\n", freed.load() == 0 ? "waits for it"
                                                                      : freed.load() == 1
                                                                          ? "does not wait, cuMemFree does"
                                                                          : "and cuMemFree do not wait");
  parts.OpenGate();
  frees.join();
  if (!parts.ComesOver()) parts.Fail("the gate did not open");
  return parts.wrong();
}

double GateSeconds(RealDevice* device, int rounds) {
  Parts parts(device);
  std::vector<double> times;
  for (int round = 0; round < rounds && parts.ok(); ++round) {
    parts.Next();
    parts.WriteReady(0);
    parts.WaitGate(0);
    parts.WriteOver(0);
    if (!parts.ComesReady()) return 0;
    const Nanoseconds begin = Now();
    parts.OpenGate();
    if (!parts.ComesOver()) return 0;
    times.push_back(static_cast<double>(Now() - begin) / 1e9);
  }
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace annulus
