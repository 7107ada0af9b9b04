// The stand-in for CUDA's driver where a primary context is reset: all that was in it is gone, and a use of it is
// found.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_kernels/kernel_names.h"
#include "cuda_kernels/reduce_kernel.h"
#include "tests/cuda/fake_driver/fake_cuda.h"

namespace annulus::cuda {
namespace {

constexpr size_t kBytes = 4096;

class FakeResetTest : public testing::Test {
 protected:
  void SetUp() override {
    control_ = ResetFakeCuda({.seed = 3, .devices = 2});
    driver_ = OpenFakeCuda();
    Enter(0);
  }
  void TearDown() override {
    Context context = nullptr;
    while (driver()->CtxPopCurrent(&context) == Result::kSuccess) {
    }
  }
  // As a program that takes a device's context.
  void Enter(int number) {
    ASSERT_EQ(driver()->DeviceGet(&device_, number), Result::kSuccess);
    ASSERT_EQ(driver()->DevicePrimaryCtxRetain(&context_, device_), Result::kSuccess);
    ASSERT_EQ(driver()->CtxPushCurrent(context_), Result::kSuccess);
  }
  void Make() {
    void* memory = nullptr;
    Library library = nullptr;
    Kernel kernel = nullptr;
    ASSERT_EQ(driver()->StreamCreateWithPriority(&stream_, kStreamNonBlocking, 0), Result::kSuccess);
    ASSERT_EQ(driver()->EventCreate(&event_, kEventWithoutTime), Result::kSuccess);
    ASSERT_EQ(driver()->MemAlloc(&memory_, kBytes), Result::kSuccess);
    ASSERT_EQ(driver()->MemHostAlloc(&memory, kBytes, 0), Result::kSuccess);
    host_ = memory;
    ASSERT_EQ(driver()->MemHostRegister(own_.data(), kBytes, 0), Result::kSuccess);
    ASSERT_EQ(driver()->LibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0), Result::kSuccess);
    library_ = library;
    const std::string name = KernelName(DataType::kUint8, ReduceOp::kSum);
    ASSERT_EQ(driver()->LibraryGetKernel(&kernel, library_, name.c_str()), Result::kSuccess);
    ASSERT_EQ(driver()->KernelGetFunction(&function_, kernel), Result::kSuccess);
    ASSERT_EQ(driver()->FuncLoad(function_), Result::kSuccess);
  }
  unsigned long long Number(Result expected = Result::kSuccess) {
    unsigned long long id = 0;
    EXPECT_EQ(driver()->CtxGetId(context_, &id), expected);
    return id;
  }

  const DriverFunctions* driver() const { return driver_->operator->(); }

  FakeControl* control_ = nullptr;
  std::unique_ptr<Driver> driver_;
  Device device_ = 0;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
  Event event_ = nullptr;
  DevicePointer memory_ = 0;
  void* host_ = nullptr;
  std::vector<std::byte> own_ = std::vector<std::byte>(kBytes);
  Library library_ = nullptr;
  Function function_ = nullptr;
};

TEST_F(FakeResetTest, TheHandleStaysAndTheNumberDoesNot) {
  const Context before = context_;
  const unsigned long long number = Number();
  EXPECT_EQ(Number(), number);
  control_->ResetDevice(0);
  Number(Result::kContextIsDestroyed);
  Stream stream = nullptr;
  EXPECT_EQ(driver()->StreamCreateWithPriority(&stream, kStreamNonBlocking, 0), Result::kContextIsDestroyed);
  EXPECT_EQ(driver()->CtxPushCurrent(context_), Result::kContextIsDestroyed);
  Enter(0);
  EXPECT_EQ(context_, before);
  EXPECT_NE(Number(), number);
  EXPECT_EQ(driver()->StreamCreateWithPriority(&stream, kStreamNonBlocking, 0), Result::kSuccess);
  EXPECT_EQ(control_->Counts().contexts, 2) << "a reset releases nothing";
  EXPECT_EQ(control_->Violations(), std::vector<std::string>());
}

TEST_F(FakeResetTest, WhoeverAllocatesMakesTheNextOne) {
  const unsigned long long number = Number();
  control_->ResetDevice(0);
  control_->Free(control_->Allocate(1, kBytes));
  Number(Result::kContextIsDestroyed);
  control_->Free(control_->Allocate(0, kBytes));
  EXPECT_NE(Number(), number);
}

TEST_F(FakeResetTest, AllThatWasInItIsGone) {
  Make();
  std::byte* const other = control_->Allocate(1, kBytes);
  control_->ResetDevice(0);
  const FakeCounts counts = control_->Counts();
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(counts.events, 0);
  EXPECT_EQ(counts.libraries, 0);
  EXPECT_EQ(counts.allocations, 0);
  EXPECT_EQ(counts.pinned_ranges, 0);
  PointerPlace place;
  EXPECT_TRUE(driver_->PlaceOf(FromDevice(memory_), &place).ok());
  EXPECT_EQ(place.type, MemoryType::kNone);
  EXPECT_TRUE(driver_->PlaceOf(other, &place).ok());
  EXPECT_EQ(place.type, MemoryType::kDevice) << "that of another device stays";
  control_->Free(other);
}

TEST_F(FakeResetTest, EveryUseOfItIsFound) {
  Make();
  control_->ResetDevice(0);
  Enter(0);
  KernelBatch batch;
  void* parameters[] = {&batch};
  Context context = nullptr;
  const std::pair<const char*, std::function<Result()>> uses[] = {
      {"cuStreamQuery", [&] { return driver()->StreamQuery(stream_); }},
      {"cuStreamSynchronize", [&] { return driver()->StreamSynchronize(stream_); }},
      {"cuStreamDestroy", [&] { return driver()->StreamDestroy(stream_); }},
      {"cuStreamGetCtx", [&] { return driver()->StreamGetCtx(stream_, &context); }},
      {"cuMemsetD8Async", [&] { return driver()->MemsetD8Async(memory_, 0, kBytes, stream_); }},
      {"cuStreamWriteValue32", [&] { return driver()->StreamWriteValue32(stream_, memory_, 0, 0); }},
      {"cuEventRecord", [&] { return driver()->EventRecord(event_, nullptr); }},
      {"cuStreamWaitEvent", [&] { return driver()->StreamWaitEvent(nullptr, event_, 0); }},
      {"cuEventDestroy", [&] { return driver()->EventDestroy(event_); }},
      {"cuMemFree", [&] { return driver()->MemFree(memory_); }},
      {"cuMemFreeHost", [&] { return driver()->MemFreeHost(host_); }},
      {"cuMemHostUnregister", [&] { return driver()->MemHostUnregister(own_.data()); }},
      {"cuLibraryUnload", [&] { return driver()->LibraryUnload(library_); }},
      {"cuFuncLoad", [&] { return driver()->FuncLoad(function_); }},
      {"cuLaunchKernel",
       [&] { return driver()->LaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr); }}};
  size_t found = 0;
  for (const auto& [name, use] : uses) {
    EXPECT_NE(use(), Result::kSuccess) << name;
    EXPECT_EQ(control_->Violations().size(), ++found) << name;
  }
}

TEST_F(FakeResetTest, WorkUnderWayIsNeverDoneAndNobodyWaitsForIt) {
  Make();
  auto* const words = reinterpret_cast<uint32_t*>(own_.data());
  ASSERT_EQ(driver()->StreamWaitValue32(stream_, ToDevice(&words[0]), 1, kWaitValueReached), Result::kSuccess);
  ASSERT_EQ(driver()->StreamWriteValue32(stream_, ToDevice(&words[1]), 1, kWriteValueDefault), Result::kSuccess);
  Result waited = Result::kSuccess;
  std::thread waits([&] {
    EXPECT_EQ(driver()->CtxPushCurrent(context_), Result::kSuccess);
    waited = driver()->StreamSynchronize(stream_);
  });
  while (control_->Counts().waiting == 0) std::this_thread::yield();
  control_->ResetDevice(0);
  waits.join();
  EXPECT_EQ(waited, Result::kContextIsDestroyed);
  __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
  EXPECT_EQ(control_->Counts().pending, 0);
  EXPECT_EQ(words[1], 0U);
  EXPECT_EQ(control_->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus::cuda
