// CudaDomain where the program resets a GPU: a queue that has used it tells, nothing of what was there is touched, and
// a queue that comes later works in the new context. On the stand-in for CUDA's driver.
#include <gtest/gtest.h>

#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

class CudaResetTest : public CudaFixture {
 protected:
  // A sum of a slot and device memory, by a queue that was prepared for it.
  Status Work(DomainQueue* queue) {
    const auto slot = NewPlace(Kind::kSlot, Bytes(kBytes));
    const auto device = NewPlace(Kind::kDevice, Bytes(kBytes, std::byte{1}));
    ANNULUS_RETURN_IF_ERROR(domain_->Prepare(device->data(), kBytes, ReduceOn::kAuto, queue));
    ANNULUS_RETURN_IF_ERROR(queue->Check());
    return RunToStatus(queue, Sum(slot->data(), device->data()));
  }
  static SliceOp Sum(std::byte* slot, std::byte* device) {
    SliceOp op;
    op.dst[0] = device;
    op.inline_src[0] = slot;
    op.inline_src[1] = device;
    op.num_sources = 2;
    op.count = kCount;
    return op;
  }
  static void ExpectReset(const Status& status, const std::string& gpu = "GPU 0, ") {
    EXPECT_EQ(status.code(), Code::kSystem) << status.ToString();
    for (const std::string& words : {gpu, std::string("was reset"), std::string("make a new one")})
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
};

TEST_F(CudaResetTest, AQueueThatHasUsedTheGpuTells) {
  Start({.seed = 2});
  ASSERT_TRUE(Work(queue_.get()).ok());
  fake_->ResetDevice(0);
  for (int i = 0; i < 2; ++i) ExpectReset(queue_->Check());
  ExpectReset(Work(queue_.get()));
  ExpectReset(queue_->Check());
  queue_->Drain();
}

// The number tells, where the program has made the next context before anybody has asked.
TEST_F(CudaResetTest, TheNextContextIsNotTakenForTheOldOne) {
  Start({.seed = 9});
  ASSERT_TRUE(Work(queue_.get()).ok());
  fake_->ResetDevice(0);
  const auto device = NewPlace(Kind::kDevice, Bytes(kBytes));
  ASSERT_TRUE(domain_->Prepare(device->data(), kBytes, ReduceOn::kAuto, queue_.get()).ok());
  ExpectReset(queue_->Check());
}

TEST_F(CudaResetTest, ALaterQueueWorksInTheNewContext) {
  Start({.seed = 3});
  ASSERT_TRUE(Work(queue_.get()).ok());
  const int64_t pinned = fake_->Counts().pinned_ranges;
  for (int round = 0; round < 3; ++round) {
    fake_->ResetDevice(0);
    std::unique_ptr<DomainQueue> later;
    ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kGpu, &later).ok());
    const Status status = Work(later.get());
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(later->Check().ok());
    ExpectReset(queue_->Check());
    EXPECT_EQ(fake_->Counts().pinned_ranges, pinned) << "the queue's memory";
  }
}

TEST_F(CudaResetTest, SlotsArePinnedAgain) {
  Start({.seed = 4});
  ASSERT_TRUE(Work(queue_.get()).ok());
  const auto slot = NewPlace(Kind::kSlot, Bytes(kBytes));
  fake_->ResetDevice(0);
  EXPECT_EQ(fake_->Counts().pinned_ranges, 0);
  // Nobody has noticed yet.
  const auto added = NewPlace(Kind::kSlot, Bytes(kBytes));
  std::unique_ptr<DomainQueue> later;
  ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kGpu, &later).ok());
  const auto device = NewPlace(Kind::kDevice, Bytes(kBytes));
  ASSERT_TRUE(domain_->Prepare(device->data(), kBytes, ReduceOn::kGpu, later.get()).ok());
  for (DevicePlace* const each : {slot.get(), added.get()}) {
    const int64_t before = fake_->Counts().launches;
    ASSERT_TRUE(RunToStatus(later.get(), Sum(each->data(), device->data())).ok());
    EXPECT_EQ(fake_->Counts().launches, before + 1) << "not by the CPU";
  }
  EXPECT_EQ(static_cast<CudaDomain*>(domain_)->slots().not_pinned(), "");
}

// The portable pins of all GPUs are in the context of the first.
TEST_F(CudaResetTest, AnotherGpuGoesOn) {
  Start({.seed = 5, .devices = 2});
  ASSERT_TRUE(Work(queue_.get()).ok());
  std::byte* const there = fake_->Allocate(1, kBytes);
  const auto slot = NewPlace(Kind::kSlot, Bytes(kBytes));
  std::unique_ptr<DomainQueue> other;
  ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kGpu, &other).ok());
  ASSERT_TRUE(domain_->Prepare(there, kBytes, ReduceOn::kGpu, other.get()).ok());
  fake_->ResetDevice(0);
  ASSERT_TRUE(domain_->Prepare(there, kBytes, ReduceOn::kGpu, other.get()).ok());
  ASSERT_TRUE(other->Check().ok());
  const Status status = RunToStatus(other.get(), Sum(slot->data(), there));
  EXPECT_TRUE(status.ok()) << status.ToString();
  ExpectReset(queue_->Check());
  fake_->Free(there);
}

TEST_F(CudaResetTest, WorkUnderWayEndsWithTheReason) {
  Start({.seed = 6});
  const auto slot = NewPlace(Kind::kSlot, Bytes(kBytes));
  const auto device = NewPlace(Kind::kDevice, Bytes(kBytes));
  ASSERT_TRUE(domain_->Prepare(device->data(), kBytes, ReduceOn::kAuto, queue_.get()).ok());
  fake_->Hold(true);
  Ticket ticket = DomainQueue::kCompleted;
  bool done = false;
  ASSERT_TRUE(queue_->Submit(Sum(slot->data(), device->data()), &ticket).ok());
  ASSERT_TRUE(queue_->Poll(ticket, &done).ok());
  fake_->ResetDevice(0);
  fake_->Hold(false);
  Status status;
  while (status.ok() && !done) status = queue_->Poll(ticket, &done);
  EXPECT_FALSE(done);
  ExpectReset(status);
  queue_->Drain();
}

// A call whose device was looked at asks once, however many of its buffers lie there.
TEST_F(CudaResetTest, ACallAsksOnce) {
  Start({.seed = 7});
  ASSERT_TRUE(Work(queue_.get()).ok());
  const auto device = NewPlace(Kind::kDevice, Bytes(kBytes));
  const int64_t before = fake_->Counts().numbers;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(domain_->Prepare(device->data(), kBytes, ReduceOn::kAuto, queue_.get()).ok());
  ASSERT_TRUE(queue_->Check().ok());
  EXPECT_EQ(fake_->Counts().numbers, before + 1);
  const float on_host = 0;
  ASSERT_TRUE(domain_->Prepare(&on_host, sizeof on_host, ReduceOn::kAuto, queue_.get()).ok());
  EXPECT_EQ(fake_->Counts().numbers, before + 1);
}

TEST_F(CudaResetTest, ADriverWithoutNumbersIsUsedAsBefore) {
  Start({.seed = 8, .missing = "cuCtxGetId"});
  ASSERT_TRUE(Work(queue_.get()).ok());
  EXPECT_TRUE(queue_->Check().ok());
  EXPECT_EQ(fake_->Counts().numbers, 0);
}

}  // namespace
}  // namespace annulus
