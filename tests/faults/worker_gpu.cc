#include "tests/faults/worker_gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

constexpr int kMostDelayUs = 200;  // So that there is work on the GPU at nearly every moment.

cuda::FakeControl* Load() {
  const char* const file = std::getenv("FAULT_DRIVER");
  if (file == nullptr) return nullptr;
  void* const handle = dlopen(file, RTLD_NOW);
  ANNULUS_CHECK(handle != nullptr);
  cuda::FakeControl* const gpu = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
  gpu->Reset({.seed = static_cast<uint64_t>(getpid()), .most_delay_us = kMostDelayUs});
  const char* const number = std::getenv("FAULT_MISTAKE");
  const auto mistake = number == nullptr ? cuda::Mistake::kNone : static_cast<cuda::Mistake>(std::atoi(number));
  gpu->Make(mistake);
  // What is not waited for might be done in time by chance.
  if (mistake == cuda::Mistake::kNoWait) gpu->Hold(true);
  return gpu;
}

int64_t Submitted() {
  const cuda::FakeCounts counts = WorkerGpu()->Counts();
  return counts.copies + counts.launches;
}

}  // namespace

cuda::FakeControl* WorkerGpu() {
  static cuda::FakeControl* const gpu = Load();
  return gpu;
}

std::vector<std::string> WrongOnGpu() {
  if (WorkerGpu() == nullptr) return {};
  std::vector<std::string> wrong = WorkerGpu()->Violations();
  const cuda::FakeCounts counts = WorkerGpu()->Counts();
  const std::pair<const char*, int64_t> left[] = {{"streams", counts.streams},
                                                  {"pinned ranges", counts.pinned_ranges},
                                                  {"allocations", counts.allocations},
                                                  {"kernels loaded by their first launch", counts.lazy_loads}};
  for (const auto& [what, count] : left) {
    if (count != 0) wrong.push_back(std::to_string(count) + " " + what);
  }
  return wrong;
}

Floats::Floats(size_t count, float value) : content_(count, value), data_(content_.data()) {
  if (WorkerGpu() == nullptr) return;
  const size_t bytes = count * sizeof(float);
  data_ = reinterpret_cast<float*>(WorkerGpu()->Allocate(0, bytes));
  WorkerGpu()->Write(reinterpret_cast<std::byte*>(data_), content_.data(), bytes);
}

Floats::Floats(const Floats& other) : Floats(other.size(), 0) {
  content_ = other.content_;
  if (WorkerGpu() == nullptr) {
    data_ = content_.data();
  } else {
    WorkerGpu()->Write(reinterpret_cast<std::byte*>(data_), content_.data(), size() * sizeof(float));
  }
}

Floats::~Floats() {
  if (WorkerGpu() != nullptr) WorkerGpu()->Free(reinterpret_cast<std::byte*>(data_));
}

std::span<const float> Floats::Read() {
  if (WorkerGpu() != nullptr)
    WorkerGpu()->Read(content_.data(), reinterpret_cast<std::byte*>(data_), size() * sizeof(float));
  return content_;
}

void Floats::Write(size_t at, float value) {
  content_[at] = value;
  if (WorkerGpu() != nullptr) WorkerGpu()->Write(reinterpret_cast<std::byte*>(data_ + at), &value, sizeof value);
}

WorkerStream::WorkerStream() {
  cuda::Device device = 0;
  cuda::Context context = nullptr;
  ANNULUS_CHECK(cuda::Driver::Find(std::getenv("FAULT_DRIVER"), &driver_).ok());
  (*driver_)->DeviceGet(&device, 0);
  (*driver_)->DevicePrimaryCtxRetain(&context, device);
  (*driver_)->CtxPushCurrent(context);
  (*driver_)->StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0);
}

WorkerStream::~WorkerStream() {
  cuda::Context context = nullptr;
  (*driver_)->StreamDestroy(stream_);
  (*driver_)->CtxPopCurrent(&context);
}

bool WorkerStream::Drains(Nanoseconds within) const {
  const Deadline until = DeadlineAfter(within);
  while ((*driver_)->StreamQuery(stream_) == cuda::Result::kNotReady) {
    if (Now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

HeldGpu::HeldGpu() {
  if (WorkerGpu() == nullptr) return;
  WorkerGpu()->Hold(true);
  const int64_t before = Submitted();
  gate_ = std::thread([this, before] {
    while (!ends_ && Submitted() == before) std::this_thread::yield();
    std::puts("holding");
    std::fflush(stdout);
    while (!ends_ && WorkerGpu()->Counts().waiting == 0) std::this_thread::yield();
    WorkerGpu()->Hold(false);
  });
}

HeldGpu::~HeldGpu() {
  ends_ = true;
  if (gate_.joinable()) gate_.join();
}

}  // namespace annulus
