// StreamUser: one rank of a program that works with CUDA's streams, on the stand-in for the driver: its streams,
// buffers and work in them.
//
// Threads: one for each object; the context is current in the thread that made it.
#pragma once

#include <annulus.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/collectives/harness/calls.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {

// As a program does that uses CUDA: before its first communicator. The first call's options are those of the process.
inline cuda::FakeControl* LoadDriver(const cuda::FakeOptions& options = {.devices = 2}) {
  static cuda::FakeControl* const fake = [&] {
    void* const handle = dlopen("tests/cuda/fake_driver/libcuda.so.1", RTLD_NOW);
    EXPECT_NE(handle, nullptr) << dlerror();
    auto* const control = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
    control->Reset(options);
    return control;
  }();
  return fake;
}

// Whether `is_so` comes true within a time that no healthy test takes.
template <class IsSo>
bool ComesTrue(IsSo is_so) {
  const Deadline until = DeadlineAfter(60 * kSecond);
  while (!is_so()) {
    if (Now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class StreamUser {
 public:
  // Its streams are of GPU `number`, its memory of GPU `memory`.
  explicit StreamUser(int number = 0, int memory = 0) : fake_(LoadDriver()), memory_(memory) {
    EXPECT_TRUE(cuda::Driver::Find("", &driver_).ok());
    cuda::Device device = 0;
    Check((*driver_)->DeviceGet(&device, number));
    Check((*driver_)->DevicePrimaryCtxRetain(&context_, device));
    Check((*driver_)->CtxPushCurrent(context_));
    word_ = reinterpret_cast<uint32_t*>(AllocatePinned(64));
  }
  ~StreamUser() {
    LetGo();
    for (const cuda::Stream stream : streams_) {
      Drain(stream);
      Check((*driver_)->StreamDestroy(stream));
    }
    for (std::byte* const memory : memories_) fake_->Free(memory);
    for (std::byte* const memory : pinned_) Check((*driver_)->MemFreeHost(memory));
    cuda::Context own = nullptr;
    Check((*driver_)->CtxPopCurrent(&own));
  }
  StreamUser(const StreamUser&) = delete;
  StreamUser& operator=(const StreamUser&) = delete;

  const cuda::Driver& driver() const { return *driver_; }
  cuda::FakeControl* fake() const { return fake_; }

  // All that it has is gone: the GPU was reset.
  void Forget() {
    streams_.clear();
    memories_.clear();
    pinned_.clear();
    word_ = &no_word_;
  }

  // Where the stand-in makes mistakes, one of them may touch memory that is not there. CUDA then refuses all that comes
  // after it in the context, and that is no failure of the test.
  void MayLoseItsContext() { may_lose_context_ = true; }
  bool has_lost_its_context() const { return has_lost_context_; }

  cuda::Stream NewStream(unsigned flags = cuda::kStreamNonBlocking) {
    streams_.emplace_back();
    Check((*driver_)->StreamCreateWithPriority(&streams_.back(), flags, 0));
    return streams_.back();
  }
  std::byte* Allocate(size_t bytes) { return memories_.emplace_back(fake_->Allocate(memory_, bytes)); }
  std::byte* AllocatePinned(size_t bytes) {
    void* memory = nullptr;
    Check((*driver_)->MemHostAlloc(&memory, bytes, cuda::kHostAllocPortable));
    return pinned_.emplace_back(static_cast<std::byte*>(std::memset(memory, 0, bytes)));
  }
  // Work in a stream.
  void Fill(cuda::Stream stream, std::byte* memory, int value, size_t bytes) {
    Check((*driver_)->MemsetD8Async(cuda::ToDevice(memory), static_cast<unsigned char>(value), bytes, stream));
  }
  void Copy(cuda::Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
    Check((*driver_)->MemcpyAsync(cuda::ToDevice(to), cuda::ToDevice(from), bytes, stream));
  }
  // The stream is busy until LetGo.
  void Hold(cuda::Stream stream) {
    Check((*driver_)->StreamWaitValue32(stream, cuda::ToDevice(word_), ++held_, cuda::kWaitValueReached));
  }
  void LetGo() { __atomic_store_n(word_, held_, __ATOMIC_RELEASE); }

  // False: work is left in it after a time that no healthy test takes.
  bool Drain(cuda::Stream stream) {
    return ComesTrue([&] { return (*driver_)->StreamQuery(stream) != cuda::Result::kNotReady; });
  }
  bool IsBusy(cuda::Stream stream) { return (*driver_)->StreamQuery(stream) == cuda::Result::kNotReady; }
  // Each byte of device or other memory; nothing may be under way.
  std::vector<int> Read(const std::byte* memory, size_t bytes) {
    std::vector<unsigned char> copy(bytes);
    cuda::PointerPlace place;
    EXPECT_TRUE(driver_->PlaceOf(memory, &place).ok());
    if (place.type == cuda::MemoryType::kDevice) {
      fake_->Read(copy.data(), memory, bytes);
    } else {
      std::memcpy(copy.data(), memory, bytes);
    }
    return std::vector<int>(copy.begin(), copy.end());
  }

 private:
  void Check(cuda::Result result) {
    if (may_lose_context_ && result == cuda::Result::kIllegalAddress) {
      has_lost_context_ = true;
    } else {
      EXPECT_EQ(static_cast<int>(result), 0);
    }
  }

  cuda::FakeControl* const fake_;
  const int memory_;
  std::unique_ptr<cuda::Driver> driver_;
  cuda::Context context_ = nullptr;
  std::vector<cuda::Stream> streams_;
  std::vector<std::byte*> memories_;
  std::vector<std::byte*> pinned_;
  bool may_lose_context_ = false;
  bool has_lost_context_ = false;
  uint32_t no_word_ = 0;
  uint32_t* word_ = nullptr;
  uint32_t held_ = 0;
};

// A call of bytes in a stream.
inline annulus_call_t& AddInStream(Calls* calls, cuda::Stream stream, annulus_kind_t kind, const void* in, void* out,
                                   size_t count, int root = 0) {
  annulus_call_t& call = calls->Rooted(kind, in, out, count, ANNULUS_UINT8, root);
  call.op = ANNULUS_SUM;
  call.stream = stream;
  call.stream_kind = ANNULUS_STREAM_CUDA;
  return call;
}
inline annulus_status_t InStream(annulus_comm_t* comm, cuda::Stream stream, annulus_kind_t kind, const void* in,
                                 void* out, size_t count, int root = 0, annulus_request_t** request = nullptr) {
  Calls calls;
  AddInStream(&calls, stream, kind, in, out, count, root);
  return calls.Submit(comm, request);
}

}  // namespace annulus
