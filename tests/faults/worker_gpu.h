// A worker's memory: host memory or, where FAULT_DRIVER names the stand-in for CUDA's driver, that of its GPU. With
// FAULT_MISTAKE, a number of cuda::Mistake, the stand-in makes a mistake in the library's place; of kNoWait it makes
// the most: nothing is ever done.
//
// Threads: any; a Floats belongs to one at a time.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {

// The stand-in; null where the worker has none. Loaded by the first call, which must come before the first
// communicator.
cuda::FakeControl* WorkerGpu();

// What was done wrong on the GPU, and what was left behind there. After the last communicator.
std::vector<std::string> WrongOnGpu();

class Floats {
 public:
  Floats(size_t count, float value);
  Floats(const Floats& other);
  Floats& operator=(const Floats&) = delete;
  ~Floats();

  float* data() const { return data_; }
  size_t size() const { return content_.size(); }
  // What it holds now; valid until the next call. No work on it may be pending.
  std::span<const float> Read();
  void Write(size_t at, float value);

 private:
  std::vector<float> content_;  // The memory itself, or a copy of it.
  float* data_;
};

// A stream of the worker's GPU, whose context is current in this thread meanwhile. The worker has a GPU.
class WorkerStream {
 public:
  WorkerStream();
  ~WorkerStream();
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;

  void* handle() const { return stream_; }
  // Whether it has no work left within the time.
  bool Drains(Nanoseconds within) const;

 private:
  std::unique_ptr<cuda::Driver> driver_;
  cuda::Stream stream_ = nullptr;
};

// Holds back all work of the GPU until somebody waits for it, as a call does that has failed, or until it ends. Writes
// the line "holding" when there is work.
class HeldGpu {
 public:
  HeldGpu();
  ~HeldGpu();
  HeldGpu(const HeldGpu&) = delete;
  HeldGpu& operator=(const HeldGpu&) = delete;

 private:
  std::atomic<bool> ends_{false};
  std::thread gate_;
};

}  // namespace annulus
