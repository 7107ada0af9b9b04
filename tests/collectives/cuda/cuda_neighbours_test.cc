// CudaDomain beside the rest of a program that uses CUDA: its contexts, its graphs, and what it does to the GPU.
#include <annulus.h>

#include <cstring>

#include "collectives/reduce/reducer.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

constexpr size_t kCount = 1000;

// Whether the calling thread has a context.
bool HasContext(const cuda::Driver& driver) {
  cuda::Context context = nullptr;
  if (driver->CtxPopCurrent(&context) != cuda::Result::kSuccess) return false;
  driver->CtxPushCurrent(context);
  return true;
}

// A user's function, whose context is the driver: it fails when our context is current.
int32_t SumInTheContextOfTheCaller(const void* left, const void* right, void* out, size_t count, annulus_type_t,
                                   void* context) {
  if (HasContext(*static_cast<const cuda::Driver*>(context))) return 1;
  for (size_t i = 0; i < count; ++i) {
    static_cast<uint8_t*>(out)[i] =
        static_cast<uint8_t>(static_cast<const uint8_t*>(left)[i] + static_cast<const uint8_t*>(right)[i]);
  }
  return 0;
}

class CudaNeighboursTest : public CudaFixture {
 protected:
  void Begin(const cuda::FakeOptions& options) {
    slot_.reset();
    memory_.reset();
    Start(options);
    driver_ = cuda::OpenFakeCuda();
    slot_ = NewPlace(Kind::kSlot, Bytes(kCount, std::byte{1}));
    memory_ = NewPlace(Kind::kDevice, Bytes(kCount, std::byte{2}));
  }
  void TearDown() override {
    slot_.reset();
    memory_.reset();
    CudaFixture::TearDown();
  }
  // uint8: slot + device, to the device.
  SliceOp Sum() const {
    SliceOp op;
    op.dst[0] = memory_->data();
    op.inline_src[0] = slot_->data();
    op.inline_src[1] = memory_->data();
    op.num_sources = 2;
    op.count = kCount;
    op.type = DataType::kUint8;
    return op;
  }

  std::unique_ptr<cuda::Driver> driver_;
  std::unique_ptr<DevicePlace> slot_;
  std::unique_ptr<DevicePlace> memory_;
};

TEST_F(CudaNeighboursTest, AGraphThatAnotherThreadCapturesIsLeftAlone) {
  Begin({.seed = 1, .captures_graph = true});
  Run(Sum());
  EXPECT_EQ(memory_->Read(), Bytes(kCount, std::byte{3}));
  EXPECT_EQ(fake_->Counts().launches, 1) << "the slots are pinned";
  cuda::CaptureMode mode = cuda::CaptureMode::kGlobal;
  (*driver_)->ThreadExchangeStreamCaptureMode(&mode);
  EXPECT_EQ(mode, cuda::CaptureMode::kGlobal) << "the thread's own mode is back";
}

TEST_F(CudaNeighboursTest, AUserDefinedFunctionSeesTheContextOfItsCaller) {
  Begin({.seed = 2});
  UserReduction user;
  user.function = &SumInTheContextOfTheCaller;
  user.context = driver_.get();
  SliceOp op = Sum();
  op.custom.user = &user;
  Run(op);
  EXPECT_EQ(user.failure.load(), 0);
  EXPECT_EQ(memory_->Read(), Bytes(kCount, std::byte{3}));
  EXPECT_FALSE(HasContext(*driver_));
}

// The program has destroyed the context, and another one is current.
TEST_F(CudaNeighboursTest, WithoutItsContextTheDomainTouchesNoOther) {
  Begin({.seed = 3});
  Run(Sum());
  device_->AllowMistakes();
  cuda::Device device = 0;
  cuda::Context own = nullptr;
  ASSERT_EQ((*driver_)->DeviceGet(&device, 0), cuda::Result::kSuccess);
  ASSERT_EQ((*driver_)->DevicePrimaryCtxRetain(&own, device), cuda::Result::kSuccess);
  {
    const cuda::ScopedContext scope(*driver_, own);
    const int64_t pinned = fake_->Counts().pinned_ranges;
    fake_->Fail("cuCtxPushCurrent", cuda::Result::kInvalidContext, 0);
    const auto late = NewPlace(Kind::kSlot, Bytes(kCount));
    EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
    fake_->Fail("cuCtxPushCurrent", cuda::Result::kInvalidContext, 0);
    slot_.reset();
    EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
    const int64_t streams = fake_->Counts().streams;
    fake_->Fail("cuCtxPushCurrent", cuda::Result::kInvalidContext, 1);
    queue_.reset();
    EXPECT_EQ(fake_->Counts().streams, streams);
  }
  (*driver_)->DevicePrimaryCtxRelease(device);
}

TEST_F(CudaNeighboursTest, WhatCannotBeWorkedOnIsRefusedBeforeThereIsWork) {
  Begin({.seed = 6});
  ASSERT_TRUE(domain_->Prepare(memory_->data(), kCount, ReduceOn::kAuto, nullptr).ok());
  std::byte* const second = fake_->Allocate(1, kCount);
  EXPECT_EQ(domain_->Prepare(second, kCount, ReduceOn::kAuto, nullptr).code(), Code::kSystem) << "there is no GPU 1";
  Run(Sum());
  fake_->Fail("cuPointerGetAttributes", cuda::Result::kLaunchFailed, 0);
  EXPECT_EQ(domain_->Prepare(memory_->data(), kCount, ReduceOn::kAuto, nullptr).code(), Code::kSystem);
  fake_->Free(second);
}

TEST_F(CudaNeighboursTest, MemoryOfAContextThatIsNotThePrimaryOneIsRefused) {
  Begin({.seed = 7, .other_context = true});
  const Status status = domain_->Prepare(memory_->data(), kCount, ReduceOn::kAuto, nullptr);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("context"), std::string::npos) << status.message();
}

TEST_F(CudaNeighboursTest, SlotsThatAreNotPinnedAreInTheLogOnce) {
  Begin({.seed = 4, .most_pinned = 0});
  const auto other = NewPlace(Kind::kSlot, Bytes(kCount));
  testing::internal::CaptureStderr();
  Run(Sum());
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("are not pinned");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("are not pinned", first + 1), std::string::npos) << log;
  EXPECT_NE(log.find("cuMemHostRegister"), std::string::npos) << log;
}

// Failures of calls that do no work themselves: of pushing the context at each place, and of waiting.
TEST_F(CudaNeighboursTest, AnEarlierFailureOfTheGpuIsFoundWhereverItShows) {
  for (int calls = 0; calls < 4; ++calls) {
    Begin({.seed = 8});
    fake_->Fail("cuCtxPushCurrent", cuda::Result::kLaunchFailed, calls);
    const Status status = RunToStatus(queue_.get(), Sum());
    // The first loads kernels and the second pins slots: work goes on by copies.
    EXPECT_EQ(status.code(), calls < 2 ? Code::kOk : Code::kSystem) << calls << ": " << status.ToString();
  }
  Begin({.seed = 9});
  Run(Sum());
  fake_->Fail("cuStreamSynchronize", cuda::Result::kLaunchFailed, 0);
  queue_->Drain();
  EXPECT_EQ(RunToStatus(queue_.get(), Sum()).code(), Code::kSystem) << "the failure sticks";
}

// A GPU that fails never stores its word: the stream is asked now and then.
TEST_F(CudaNeighboursTest, AGpuThatNeverAnswersIsAsked) {
  Begin({.seed = 10});
  Run(Sum());
  fake_->Hold(true);
  fake_->Fail("cuStreamQuery", cuda::Result::kLaunchFailed, 0);
  const Status status = RunToStatus(queue_.get(), Sum());
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.message().find("cuStreamQuery"), std::string::npos) << status.message();
  fake_->Hold(false);
  queue_->Drain();
}

TEST_F(CudaNeighboursTest, StreamsThatWriteNoWordsAreRefusedAtOnce) {
  Begin({.seed = 5});
  fake_->Fail("cuStreamWriteValue32", cuda::Result::kNotSupported, 0);
  const Status status = RunToStatus(queue_.get(), Sum());
  EXPECT_EQ(status.code(), Code::kUnsupported) << status.ToString();
  EXPECT_NE(status.message().find("cuStreamWriteValue32"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace annulus
