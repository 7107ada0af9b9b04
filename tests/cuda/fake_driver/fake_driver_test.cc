// The stand-in for CUDA's driver: what it does right, and that it finds what a user of the driver does wrong.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "collectives/cuda/cuda_domain.h"
#include "cuda_kernels/kernel_names.h"
#include "cuda_kernels/reduce_kernel.h"
#include "tests/cuda/fake_driver/fake_cuda.h"

namespace annulus::cuda {
namespace {

constexpr size_t kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(float);

std::vector<float> Values(float first) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

class FakeDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    control_ = ResetFakeCuda({.seed = 3});
    driver_ = OpenFakeCuda();
    Context context = nullptr;
    Device device = 0;
    ASSERT_EQ(driver()->DeviceGet(&device, 0), Result::kSuccess);
    ASSERT_EQ(driver()->DevicePrimaryCtxRetain(&context, device), Result::kSuccess);
    ASSERT_EQ(driver()->CtxPushCurrent(context), Result::kSuccess);
    ASSERT_EQ(driver()->StreamCreateWithPriority(&stream_, kStreamNonBlocking, 0), Result::kSuccess);
    ASSERT_EQ(driver()->StreamCreateWithPriority(&other_, kStreamNonBlocking, 0), Result::kSuccess);
    void* words = nullptr;
    ASSERT_EQ(driver()->MemHostAlloc(&words, 4096, 0), Result::kSuccess);
    std::memset(words, 0, 4096);
    word_ = static_cast<uint32_t*>(words);
    ASSERT_EQ(driver()->MemAlloc(&counter_, sizeof(uint32_t)), Result::kSuccess);
    ASSERT_EQ(driver()->MemsetD8Async(counter_, 0, sizeof(uint32_t), stream_), Result::kSuccess);
  }
  void TearDown() override {
    Context context = nullptr;
    driver()->StreamSynchronize(stream_);
    driver()->StreamSynchronize(other_);
    driver()->CtxPopCurrent(&context);
  }

  const DriverFunctions* driver() const { return driver_->operator->(); }
  std::byte* NewValues(float first) {
    std::byte* const memory = control_->Allocate(0, kBytes);
    control_->Write(memory, Values(first).data(), kBytes);
    return memory;
  }
  std::vector<float> ReadBack(const std::byte* memory) {
    std::vector<float> values(kCount);
    control_->Read(values.data(), memory, kBytes);
    return values;
  }
  PointerPlace PlaceOf(const void* pointer) {
    PointerPlace place;
    EXPECT_TRUE(driver_->PlaceOf(pointer, &place).ok());
    return place;
  }
  Result Copy(Stream stream, std::byte* to, const std::byte* from) {
    return driver()->MemcpyAsync(ToDevice(to), ToDevice(from), kBytes, stream);
  }
  Result LaunchSum(const std::byte* a, const std::byte* b, std::byte* to) {
    Library library = nullptr;
    Kernel kernel = nullptr;
    Function function = nullptr;
    driver()->LibraryLoadData(&library, "", nullptr, nullptr, 0, nullptr, nullptr, 0);
    const std::string name = KernelName(DataType::kFloat32, ReduceOp::kSum);
    EXPECT_EQ(driver()->LibraryGetKernel(&kernel, library, name.c_str()), Result::kSuccess);
    EXPECT_EQ(driver()->KernelGetFunction(&function, kernel), Result::kSuccess);
    EXPECT_EQ(driver()->FuncLoad(function), Result::kSuccess);
    KernelBatch batch;
    batch.slices[0].dst[0] = to;
    batch.slices[0].src[0] = a;
    batch.slices[0].src[1] = b;
    batch.slices[0].num_sources = 2;
    batch.slices[0].count = kCount;
    batch.slices[0].done = word_;
    batch.slices[0].done_value = 7;
    batch.slices[0].finished_blocks = FromDevice<uint32_t>(counter_);
    void* parameters[] = {&batch};
    return driver()->LaunchKernel(function, 2, 1, 1, 64, 1, 1, 0, stream_, parameters, nullptr);
  }

  FakeControl* control_ = nullptr;
  std::unique_ptr<Driver> driver_;
  Stream stream_ = nullptr;
  Stream other_ = nullptr;
  uint32_t* word_ = nullptr;
  DevicePointer counter_ = 0;
};

TEST_F(FakeDriverTest, ACopyAndAKernelDoTheirWorkInTheOrderOfTheirStream) {
  std::byte* const a = NewValues(1);
  std::byte* const b = NewValues(10);
  std::byte* const c = NewValues(0);
  ASSERT_EQ(Copy(stream_, c, b), Result::kSuccess);
  ASSERT_EQ(LaunchSum(a, c, c), Result::kSuccess);
  ASSERT_EQ(driver()->StreamSynchronize(stream_), Result::kSuccess);
  EXPECT_EQ(__atomic_load_n(word_, __ATOMIC_ACQUIRE), 7u);
  EXPECT_EQ(ReadBack(c)[3], 1 + 3 + 10 + 3);
  EXPECT_TRUE(control_->Violations().empty());
  EXPECT_EQ(control_->Counts().lazy_loads, 0);
}

TEST_F(FakeDriverTest, DeviceMemoryDiesOfATouchByTheCpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  volatile std::byte* const memory = NewValues(1);
  EXPECT_DEATH(memory[0] = std::byte{1}, "");
}

TEST_F(FakeDriverTest, PointersAreToldApart) {
  const std::byte* const device = NewValues(1);
  const int on_stack = 0;
  EXPECT_EQ(PlaceOf(device + kBytes - 1).type, MemoryType::kDevice);
  EXPECT_EQ(PlaceOf(device).device, 0);
  EXPECT_EQ(PlaceOf(word_).type, MemoryType::kHost);
  EXPECT_EQ(PlaceOf(&on_stack).type, MemoryType::kNone);
  EXPECT_EQ(PlaceOf(nullptr).type, MemoryType::kNone);
}

TEST_F(FakeDriverTest, AllocationsAndRegistrationsHaveABeginAndAnEnd) {
  alignas(4096) static std::array<std::byte, 8192> memory;
  ASSERT_EQ(driver()->MemHostRegister(memory.data(), 4096, 0), Result::kSuccess);
  ASSERT_EQ(driver()->MemHostRegister(memory.data() + 4096, 4096, 0), Result::kSuccess);
  EXPECT_EQ(PlaceOf(memory.data() + 5000).begin, ToDevice(memory.data() + 4096));
  EXPECT_EQ(PlaceOf(memory.data() + 5000).bytes, 4096u);
  const std::byte* const device = NewValues(1);
  EXPECT_EQ(PlaceOf(device + 17).begin, ToDevice(device));
  EXPECT_EQ(PlaceOf(device + 17).bytes, kBytes);
  EXPECT_NE(PlaceOf(device).context, nullptr);
  driver()->MemHostUnregister(memory.data());
  driver()->MemHostUnregister(memory.data() + 4096);
}

TEST_F(FakeDriverTest, APointerOfWhichTheDriverDoesNotTellIsAnError) {
  const int on_stack = 0;
  PointerPlace place;
  control_->Fail("cuPointerGetAttributes", Result::kIllegalAddress, 0);
  const Status status = driver_->PlaceOf(&on_stack, &place);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.message().find("cuPointerGetAttributes"), std::string::npos) << status.message();
  control_->Fail("cuPointerGetAttributes", Result::kNotInitialized, 0);
  EXPECT_TRUE(driver_->PlaceOf(&on_stack, &place).ok()) << "nobody has device memory";
  EXPECT_EQ(place.type, MemoryType::kNone);
}

TEST_F(FakeDriverTest, AKernelOnMemoryThatIsNotPinnedFailsForGood) {
  const std::vector<float> pageable = Values(1);
  std::byte* const memory = NewValues(1);
  ASSERT_EQ(LaunchSum(memory, reinterpret_cast<const std::byte*>(pageable.data()), memory), Result::kSuccess);
  EXPECT_EQ(driver()->StreamSynchronize(stream_), Result::kIllegalAddress);
  EXPECT_EQ(Copy(other_, memory, NewValues(2)), Result::kIllegalAddress) << "the error sticks";
}

TEST_F(FakeDriverTest, ACallWithoutAContextFails) {
  Context context = nullptr;
  ASSERT_EQ(driver()->CtxPopCurrent(&context), Result::kSuccess);
  DevicePointer memory = 0;
  EXPECT_EQ(driver()->MemAlloc(&memory, 1), Result::kInvalidContext);
  EXPECT_EQ(driver()->StreamQuery(stream_), Result::kInvalidContext);
  ASSERT_EQ(driver()->CtxPushCurrent(context), Result::kSuccess);
  EXPECT_EQ(driver()->MemAlloc(&memory, 1), Result::kSuccess);
}

TEST_F(FakeDriverTest, AGraphThatIsCapturedForbidsAllocationsUnlessRelaxed) {
  Context context = nullptr;
  driver()->CtxPopCurrent(&context);
  control_->Reset({.captures_graph = true});
  driver()->CtxPushCurrent(context);
  void* pinned = nullptr;
  EXPECT_EQ(driver()->MemHostAlloc(&pinned, 1, 0), Result::kStreamCaptureUnsupported);
  {
    const RelaxedCapture relaxed(*driver_);
    EXPECT_EQ(driver()->MemHostAlloc(&pinned, 1, 0), Result::kSuccess);
  }
  EXPECT_EQ(driver()->MemHostAlloc(&pinned, 1, 0), Result::kStreamCaptureUnsupported);
}

TEST_F(FakeDriverTest, AMissingWaitBetweenStreamsIsAViolation) {
  std::byte* const a = NewValues(1);
  std::byte* const b = NewValues(2);
  std::byte* const c = NewValues(3);
  control_->Hold(true);
  Copy(stream_, b, a);
  Copy(stream_, c, b);
  EXPECT_TRUE(control_->Violations().empty()) << "a stream has an order";
  Copy(other_, c, b);
  EXPECT_FALSE(control_->Violations().empty());
  control_->Hold(false);
}

TEST_F(FakeDriverTest, AnEventOrdersTwoStreams) {
  std::byte* const a = NewValues(1);
  std::byte* const b = NewValues(2);
  std::byte* const c = NewValues(3);
  Event event = nullptr;
  ASSERT_EQ(driver()->EventCreate(&event, kEventWithoutTime), Result::kSuccess);
  control_->Hold(true);
  Copy(stream_, b, a);
  ASSERT_EQ(driver()->EventRecord(event, stream_), Result::kSuccess);
  ASSERT_EQ(driver()->StreamWaitEvent(other_, event, 0), Result::kSuccess);
  Copy(other_, c, b);
  EXPECT_TRUE(control_->Violations().empty());
  control_->Make(Mistake::kNoEvent);
  Copy(other_, b, a);
  ASSERT_EQ(driver()->EventRecord(event, other_), Result::kSuccess);
  ASSERT_EQ(driver()->StreamWaitEvent(stream_, event, 0), Result::kSuccess);
  Copy(stream_, b, a);
  EXPECT_FALSE(control_->Violations().empty()) << "a wait that is missing";
  control_->Hold(false);
  ASSERT_EQ(driver()->StreamSynchronize(other_), Result::kSuccess);
  EXPECT_EQ(ReadBack(c)[3], 1 + 3);
  EXPECT_EQ(driver()->EventDestroy(event), Result::kSuccess);
  EXPECT_EQ(driver()->EventDestroy(event), Result::kInvalidValue);
}

TEST_F(FakeDriverTest, AStreamWaitsUntilTheCpuHasStoredAWord) {
  std::byte* const a = NewValues(1);
  std::byte* const b = NewValues(2);
  ASSERT_EQ(driver()->StreamWaitValue32(stream_, ToDevice(word_), 5, kWaitValueReached), Result::kSuccess);
  ASSERT_EQ(Copy(stream_, b, a), Result::kSuccess);
  ASSERT_EQ(driver()->StreamSynchronize(other_), Result::kSuccess) << "other streams do not wait";
  EXPECT_EQ(driver()->StreamQuery(stream_), Result::kNotReady);
  __atomic_store_n(word_, 4, __ATOMIC_RELEASE);
  EXPECT_EQ(driver()->StreamQuery(stream_), Result::kNotReady);
  __atomic_store_n(word_, 6, __ATOMIC_RELEASE);
  ASSERT_EQ(driver()->StreamSynchronize(stream_), Result::kSuccess);
  EXPECT_EQ(ReadBack(b)[3], 1 + 3);
}

TEST_F(FakeDriverTest, TheLegacyDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  std::byte* const a = NewValues(1);
  std::byte* const b = NewValues(2);
  Stream blocking = nullptr;
  ASSERT_EQ(driver()->StreamCreateWithPriority(&blocking, 0, 0), Result::kSuccess);
  control_->Hold(true);
  Copy(blocking, b, a);
  Copy(nullptr, b, a);
  Copy(ThreadStream(), b, a);
  Copy(LegacyStream(), b, a);
  EXPECT_TRUE(control_->Violations().empty());
  Copy(stream_, b, a);
  EXPECT_FALSE(control_->Violations().empty()) << "a stream that does not block waits for none";
  control_->Hold(false);
  ASSERT_EQ(driver()->StreamSynchronize(nullptr), Result::kSuccess);
  EXPECT_EQ(driver()->StreamDestroy(blocking), Result::kSuccess);
}

TEST_F(FakeDriverTest, AStreamTellsItsContextAndWhetherItIsCaptured) {
  Context context = nullptr;
  Device current = 0;
  Device first = 0;
  CaptureStatus status = CaptureStatus::kNone;
  ASSERT_EQ(driver()->StreamGetCtx(stream_, &context), Result::kSuccess);
  EXPECT_NE(context, nullptr);
  ASSERT_EQ(driver()->CtxGetDevice(&current), Result::kSuccess);
  ASSERT_EQ(driver()->DeviceGet(&first, 0), Result::kSuccess);
  EXPECT_EQ(current, first);
  control_->Capture(stream_, true);
  ASSERT_EQ(driver()->StreamIsCapturing(stream_, &status), Result::kSuccess);
  EXPECT_EQ(status, CaptureStatus::kActive);
  ASSERT_EQ(driver()->StreamIsCapturing(other_, &status), Result::kSuccess);
  EXPECT_EQ(status, CaptureStatus::kNone);
}

TEST_F(FakeDriverTest, NewMemoryIsDirtyAndSetInTheOrderOfAStream) {
  std::byte* const memory = NewValues(1);
  ASSERT_EQ(driver()->MemsetD8Async(counter_, 0, sizeof(uint32_t), other_), Result::kSuccess);
  ASSERT_EQ(driver()->StreamSynchronize(other_), Result::kSuccess);
  control_->Hold(true);
  ASSERT_EQ(driver()->MemsetD8Async(counter_, 0, sizeof(uint32_t), other_), Result::kSuccess);
  ASSERT_EQ(LaunchSum(memory, memory, memory), Result::kSuccess);
  EXPECT_FALSE(control_->Violations().empty()) << "the launch does not wait for the other stream";
  control_->Hold(false);
  ASSERT_EQ(driver()->StreamSynchronize(other_), Result::kSuccess);
  ASSERT_EQ(driver()->MemAlloc(&counter_, sizeof(uint32_t)), Result::kSuccess);
  ASSERT_EQ(LaunchSum(memory, memory, memory), Result::kSuccess);
  EXPECT_NE(driver()->StreamSynchronize(stream_), Result::kSuccess) << "the counter is not zero";
}

TEST_F(FakeDriverTest, TwoStreamsThatStoreOneWordAreAViolation) {
  control_->Hold(true);
  driver()->StreamWriteValue32(stream_, ToDevice(word_), 1, kWriteValueDefault);
  EXPECT_TRUE(control_->Violations().empty());
  driver()->StreamWriteValue32(other_, ToDevice(word_), 2, kWriteValueDefault);
  EXPECT_FALSE(control_->Violations().empty());
  control_->Hold(false);
}

TEST_F(FakeDriverTest, MemoryThatGoesWhileWorkIsPendingIsAViolation) {
  control_->Hold(true);
  void* pinned = nullptr;
  ASSERT_EQ(driver()->MemHostAlloc(&pinned, kBytes, 0), Result::kSuccess);
  std::byte* const memory = control_->Allocate(0, kBytes);
  ASSERT_EQ(Copy(stream_, memory, static_cast<std::byte*>(pinned)), Result::kSuccess);
  driver()->MemFreeHost(pinned);
  EXPECT_FALSE(control_->Violations().empty());
  control_->Hold(false);
}

TEST_F(FakeDriverTest, PagesArePinnedOnce) {
  alignas(4096) static std::array<std::byte, 8192> memory;
  EXPECT_EQ(driver()->MemHostRegister(memory.data(), 100, 0), Result::kSuccess);
  EXPECT_EQ(driver()->MemHostRegister(memory.data() + 4000, 50, 0), Result::kHostMemoryAlreadyRegistered);
  EXPECT_EQ(driver()->MemHostRegister(memory.data() + 4096, 50, 0), Result::kSuccess);
  EXPECT_EQ(driver()->MemHostUnregister(memory.data()), Result::kSuccess);
  EXPECT_EQ(driver()->MemHostUnregister(memory.data()), Result::kInvalidValue);
  EXPECT_EQ(driver()->MemHostUnregister(memory.data() + 4096), Result::kSuccess);
}

TEST_F(FakeDriverTest, AFailureOnCommandComesOnce) {
  control_->Fail("cuMemAlloc", Result::kOutOfMemory, 1);
  DevicePointer memory = 0;
  EXPECT_EQ(driver()->MemAlloc(&memory, 1), Result::kSuccess);
  EXPECT_EQ(driver()->MemAlloc(&memory, 1), Result::kOutOfMemory);
  EXPECT_EQ(driver()->MemAlloc(&memory, 1), Result::kSuccess);
  const Status status = driver_->ToStatus(Result::kOutOfMemory, "cuMemAlloc");
  EXPECT_EQ(status.code(), Code::kOutOfMemory);
  EXPECT_EQ(status.message(), "cuMemAlloc: an error of the stand-in (CUDA_ERROR_FAKE)");
}

TEST_F(FakeDriverTest, AFunctionThatWasNotLoadedAheadCounts) {
  control_->Make(Mistake::kNoPreload);
  std::byte* const memory = NewValues(1);
  ASSERT_EQ(LaunchSum(memory, memory, memory), Result::kSuccess);
  EXPECT_EQ(control_->Counts().lazy_loads, 1);
}

TEST(DriverFindTest, AnAbsentOrOldDriverSaysWhy) {
  std::unique_ptr<Driver> driver;
  Status status = Driver::Find("/nonexistent/libcuda.so.1", &driver);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("/nonexistent/libcuda.so.1"), std::string::npos) << status.message();
  ResetFakeCuda({.version = 12010});
  status = Driver::Find(FakeCudaFile(), &driver);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("12.1"), std::string::npos) << status.message();
  ResetFakeCuda({.missing = "cuMemHostRegister"});
  status = Driver::Find(FakeCudaFile(), &driver);
  EXPECT_NE(status.message().find("cuMemHostRegister"), std::string::npos) << status.message();
  EXPECT_EQ(driver, nullptr);
}

TEST(DriverFindTest, AProgramWithoutADriverHasNone) {
  std::unique_ptr<Driver> driver;
  const Status status = Driver::Find("", &driver);
  if (status.ok()) GTEST_SKIP() << "this machine loads a CUDA driver into tests";
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("libcuda.so.1"), std::string::npos) << status.message();
}

// Before CUDA 12. The memory of a program with such a driver is told apart all the same, and refused.
TEST_F(FakeDriverTest, AnOldDriverOnlyTellsWhereMemoryLies) {
  std::unique_ptr<Driver> old;
  EXPECT_EQ(Driver::Find("tests/cuda/fake_driver/libcuda_old.so", &old).code(), Code::kUnsupported);
  ASSERT_TRUE(Driver::FindAny("tests/cuda/fake_driver/libcuda_old.so", &old).ok());
  EXPECT_EQ(old->version(), 11020);
  EXPECT_NE(old->unusable().find("too old"), std::string::npos) << old->unusable();
  CudaDomain domain(std::move(old), {});
  const void* const on_gpu = reinterpret_cast<void*>(0x180000);
  const int on_stack = 0;
  EXPECT_TRUE(domain.Owns(on_gpu));
  EXPECT_FALSE(domain.Owns(&on_stack));
  const Status status = domain.Prepare(on_gpu, 8, ReduceOn::kAuto, nullptr);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("12.4 or newer"), std::string::npos) << status.message();
  EXPECT_EQ(domain.OpenStreams(SIZE_MAX), nullptr);
  EXPECT_STREQ(domain.Report().why, status.message().c_str());
}

}  // namespace
}  // namespace annulus::cuda
