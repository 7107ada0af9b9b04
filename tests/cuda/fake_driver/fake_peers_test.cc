// The stand-in for CUDA's driver with several devices: who reaches whose memory, and that it finds what was not asked
// for.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cuda_kernels/kernel_names.h"
#include "cuda_kernels/reduce_kernel.h"
#include "tests/cuda/fake_driver/fake_cuda.h"
#include "tests/cuda/mapped_memory.h"

namespace annulus::cuda {
namespace {

constexpr size_t kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(float);

// 0 and 1 by NVLink, 1 and 2 by PCIe, 0 and 2 not at all.
FakeLink Chain(int a, int b) {
  if (a + b == 1) return FakeLink::kNvlink;
  return a + b == 3 ? FakeLink::kPcie : FakeLink::kNone;
}

class FakePeersTest : public testing::Test {
 protected:
  void SetUp() override {
    control_ = ResetFakeCuda({.devices = 3, .link = Chain});
    driver_ = OpenFakeCuda();
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(driver()->DeviceGet(&devices_[i], i), Result::kSuccess);
      ASSERT_EQ(driver()->DevicePrimaryCtxRetain(&contexts_[i], devices_[i]), Result::kSuccess);
    }
    void* words = nullptr;
    const ScopedContext scope(*driver_, contexts_[0]);
    ASSERT_EQ(driver()->MemHostAlloc(&words, 4096, 0), Result::kSuccess);
    word_ = static_cast<uint32_t*>(words);
  }

  const DriverFunctions* driver() const { return driver_->operator->(); }
  int CanAccess(int device, int peer) {
    int can = -1;
    EXPECT_EQ(driver()->DeviceCanAccessPeer(&can, devices_[device], devices_[peer]), Result::kSuccess);
    return can;
  }
  Result Enable(int device, int peer) {
    const ScopedContext scope(*driver_, contexts_[device]);
    return driver()->CtxEnablePeerAccess(contexts_[peer], 0);
  }
  std::byte* NewValues(int device, float value) {
    std::byte* const memory = control_->Allocate(device, kBytes);
    const std::vector<float> values(kCount, value);
    control_->Write(memory, values.data(), kBytes);
    return memory;
  }
  float First(const std::byte* memory) {
    float value = 0;
    control_->Read(&value, memory, sizeof value);
    return value;
  }
  // Adds `from` to `to` in a kernel of that device, whose counter of blocks lies on another one.
  Result Add(int device, const std::byte* from, std::byte* to, int counter_on) {
    const ScopedContext scope(*driver_, contexts_[device]);
    Stream stream = nullptr;
    Library library = nullptr;
    Kernel kernel = nullptr;
    Function function = nullptr;
    driver()->StreamCreateWithPriority(&stream, kStreamNonBlocking, 0);
    driver()->LibraryLoadData(&library, "", nullptr, nullptr, 0, nullptr, nullptr, 0);
    const std::string name = KernelName(DataType::kFloat32, ReduceOp::kSum);
    EXPECT_EQ(driver()->LibraryGetKernel(&kernel, library, name.c_str()), Result::kSuccess);
    EXPECT_EQ(driver()->KernelGetFunction(&function, kernel), Result::kSuccess);
    EXPECT_EQ(driver()->FuncLoad(function), Result::kSuccess);
    std::byte* const counter = control_->Allocate(counter_on, sizeof(uint32_t));
    constexpr uint32_t kZero = 0;
    control_->Write(counter, &kZero, sizeof kZero);
    KernelBatch batch;
    batch.slices[0].dst[0] = to;
    batch.slices[0].src[0] = from;
    batch.slices[0].src[1] = to;
    batch.slices[0].num_sources = 2;
    batch.slices[0].count = kCount;
    batch.slices[0].done = word_;
    batch.slices[0].done_value = 7;
    batch.slices[0].finished_blocks = reinterpret_cast<uint32_t*>(counter);
    void* parameters[] = {&batch};
    const Result result = driver()->LaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, parameters, nullptr);
    return result == Result::kSuccess ? driver()->StreamSynchronize(stream) : result;
  }

  FakeControl* control_ = nullptr;
  std::unique_ptr<Driver> driver_;
  Device devices_[3] = {};
  Context contexts_[3] = {};
  uint32_t* word_ = nullptr;
};

TEST_F(FakePeersTest, DevicesReachThoseWithALinkOnceTheyAreLetIn) {
  EXPECT_EQ(CanAccess(0, 1), 1);
  EXPECT_EQ(CanAccess(2, 1), 1);
  EXPECT_EQ(CanAccess(0, 2), 0);
  EXPECT_EQ(CanAccess(1, 1), 0) << "its own memory is no peer's";
  EXPECT_EQ(Enable(0, 1), Result::kSuccess);
  EXPECT_EQ(Enable(0, 1), Result::kPeerAccessAlreadyEnabled);
  EXPECT_EQ(Enable(0, 2), Result::kPeerAccessUnsupported);
  EXPECT_EQ(Enable(0, 0), Result::kInvalidDevice);
  std::byte* const from = NewValues(1, 1);
  std::byte* const to = NewValues(0, 2);
  EXPECT_EQ(Add(0, from, to, 0), Result::kSuccess);
  EXPECT_EQ(First(to), 3);
  EXPECT_EQ(Add(0, to, from, 0), Result::kSuccess) << "the result on the other one";
  EXPECT_EQ(First(from), 4);
}

TEST_F(FakePeersTest, AKernelThatWasNotLetInFails) {
  EXPECT_EQ(Enable(1, 0), Result::kSuccess) << "the other way round";
  EXPECT_EQ(Add(0, NewValues(1, 1), NewValues(0, 2), 0), Result::kIllegalAddress);
}

TEST_F(FakePeersTest, AnEnablingThatWasForgottenIsFound) {
  control_->Make(Mistake::kNoPeer);
  EXPECT_EQ(Enable(0, 1), Result::kSuccess);
  EXPECT_EQ(Add(0, NewValues(1, 1), NewValues(0, 2), 0), Result::kIllegalAddress);
}

TEST_F(FakePeersTest, AtomicOperationsNeedNvlink) {
  EXPECT_EQ(Enable(0, 1), Result::kSuccess);
  EXPECT_EQ(Enable(1, 2), Result::kSuccess);
  EXPECT_EQ(Add(0, NewValues(0, 1), NewValues(0, 2), 1), Result::kSuccess);
  EXPECT_EQ(Add(1, NewValues(2, 1), NewValues(1, 2), 1), Result::kSuccess) << "reads over PCIe";
  EXPECT_EQ(Add(1, NewValues(1, 1), NewValues(1, 2), 2), Result::kIllegalAddress);
}

TEST_F(FakePeersTest, MappedMemoryIsOpenedForEachDeviceByItself) {
  std::unique_ptr<MappedMemory> memory;
  ASSERT_TRUE(MappedMemory::Make(*driver_, contexts_[0], {kBytes, 0, true, 0}, &memory).ok());
  const std::vector<float> values(kCount, 1);
  control_->Write(memory->data(), values.data(), kBytes);
  const auto open_for = [&](int device) {
    const ScopedContext scope(*driver_, contexts_[0]);
    const AccessRight right{{LocationKind::kDevice, device}, AccessFlags::kReadWrite};
    return driver()->MemSetAccess(ToDevice(memory->data()), memory->bytes(), &right, 1);
  };
  EXPECT_EQ(open_for(2), Result::kInvalidDevice);
  EXPECT_EQ(open_for(1), Result::kSuccess);
  std::byte* const to = NewValues(1, 2);
  EXPECT_EQ(Add(1, memory->data(), to, 1), Result::kSuccess);
  EXPECT_EQ(First(to), 3);
}

TEST_F(FakePeersTest, MappedMemoryIsNotOpenedWithTheDevice) {
  std::unique_ptr<MappedMemory> memory;
  ASSERT_TRUE(MappedMemory::Make(*driver_, contexts_[0], {kBytes, 0, true, 0}, &memory).ok());
  EXPECT_EQ(Enable(1, 0), Result::kSuccess);
  EXPECT_EQ(Add(1, memory->data(), NewValues(1, 2), 1), Result::kIllegalAddress);
}

TEST_F(FakePeersTest, ANameIsOpenedWithTheOneFlag) {
  const ScopedContext scope(*driver_, contexts_[0]);
  DevicePointer memory = 0;
  EXPECT_EQ(driver()->IpcOpenMemHandle(&memory, IpcMemHandle{}, 0), Result::kInvalidValue);
}

}  // namespace
}  // namespace annulus::cuda
