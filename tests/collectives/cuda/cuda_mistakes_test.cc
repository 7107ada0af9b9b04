// The proof that the stand-in would find what CudaDomain could forget: it makes each mistake in its place, and what the
// other tests look at must then go wrong.
#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

class CudaMistakesTest : public CudaFixture {
 protected:
  void SetUp() override {
    Start({.seed = 1});
    slot_ = NewPlace(Kind::kSlot, Bytes(kBytes, std::byte{1}));
    memory_ = NewPlace(Kind::kDevice, Bytes(kBytes, std::byte{0}));
  }
  void TearDown() override {
    device_->AllowMistakes();
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
    op.count = kBytes;
    op.type = DataType::kUint8;
    return op;
  }
  std::unique_ptr<DevicePlace> slot_;
  std::unique_ptr<DevicePlace> memory_;
};

TEST_F(CudaMistakesTest, WithoutAMistakeAllIsWell) {
  EXPECT_TRUE(RunToStatus(queue_.get(), Sum()).ok());
  EXPECT_EQ(memory_->Read(), Bytes(kBytes, std::byte{1}));
  EXPECT_TRUE(fake_->Violations().empty());
}

TEST_F(CudaMistakesTest, AMissingPinFails) {
  fake_->Make(cuda::Mistake::kNoPin);
  EXPECT_EQ(RunToStatus(queue_.get(), Sum()).code(), Code::kSystem);
}

TEST_F(CudaMistakesTest, AMissingContextFails) {
  fake_->Make(cuda::Mistake::kNoPush);
  EXPECT_EQ(RunToStatus(queue_.get(), Sum()).code(), Code::kSystem);
}

TEST_F(CudaMistakesTest, AMissingWaitGivesWrongResultsAndIsAViolation) {
  fake_->Make(cuda::Mistake::kNoWait);
  fake_->Hold(true);
  EXPECT_TRUE(RunToStatus(queue_.get(), Sum()).ok());
  EXPECT_NE(memory_->Read(), Bytes(kBytes, std::byte{1}));
  EXPECT_FALSE(fake_->Violations().empty());
  fake_->Hold(false);
}

TEST_F(CudaMistakesTest, AMissingDrainIsAViolation) {
  fake_->Make(cuda::Mistake::kNoDrain);
  fake_->Hold(true);
  Ticket ticket = DomainQueue::kCompleted;
  bool done = false;
  ASSERT_TRUE(queue_->Submit(Sum(), &ticket).ok());
  ASSERT_TRUE(queue_->Poll(ticket, &done).ok());
  queue_->Drain();
  slot_.reset();
  EXPECT_FALSE(fake_->Violations().empty());
  fake_->Make(cuda::Mistake::kNone);
  fake_->Hold(false);
}

TEST_F(CudaMistakesTest, AKernelThatIsLoadedByItsLaunchCounts) {
  fake_->Make(cuda::Mistake::kNoPreload);
  EXPECT_TRUE(RunToStatus(queue_.get(), Sum()).ok());
  EXPECT_GT(fake_->Counts().lazy_loads, 0);
}

}  // namespace
}  // namespace annulus
