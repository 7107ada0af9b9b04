// A driver that lets nobody in, as while it waits for streams: who drives calls has what it needs without it, and who
// only looks waits for no thread that is in there.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/cuda/cuda_domain.h"
#include "tests/collectives/cuda/cuda_fixture.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 4096;
constexpr auto kSoon = std::chrono::seconds(20);

template <class IsSo>
bool ComesTrue(IsSo is_so) {
  for (const Deadline deadline = DeadlineAfter(20 * kSecond); Now() < deadline; sched_yield()) {
    if (is_so()) return true;
  }
  return false;
}

class CudaWaitsTest : public CudaFixture {
 protected:
  void SetUp() override {
    Start({.devices = 2});
    memory_ = NewPlace(Kind::kDevice, Bytes(kBytes, std::byte{1}));
    other_ = NewPlace(Kind::kDevice, Bytes(kBytes, std::byte{2}));
  }
  void TearDown() override {
    memory_.reset();
    other_.reset();
    CudaFixture::TearDown();
  }

  CudaDomain* domain() const { return static_cast<CudaDomain*>(domain_); }
  void Prepare() { ASSERT_TRUE(domain_->Prepare(memory_->data(), kBytes, ReduceOn::kAuto, queue_.get()).ok()); }
  SliceOp Copy() const {
    SliceOp op;
    op.inline_src[0] = memory_->data();
    op.dst[0] = other_->data();
    op.num_sources = 1;
    op.count = kBytes / sizeof(float);
    return op;
  }

  // Runs `body` on a thread that the driver does not let in, and meanwhile `looks`, which must not wait for it.
  template <class Body, class Looks>
  void WhileLockedOut(Body body, Looks looks) {
    Ticket ticket = DomainQueue::kCompleted;
    fake_->Hold(true);
    ASSERT_TRUE(queue_->Submit(Copy(), &ticket).ok());
    bool is_done = false;
    ASSERT_TRUE(queue_->Poll(ticket, &is_done).ok());  // Launches it.
    std::thread locks([this] { fake_->WaitLocked(); });
    EXPECT_TRUE(ComesTrue([this] { return fake_->IsLocked(); }));
    std::thread waits(body);
    EXPECT_TRUE(ComesTrue([this] { return fake_->LockedOut() > 0; }));
    std::future<void> looked = std::async(std::launch::async, looks);
    EXPECT_EQ(looked.wait_for(kSoon), std::future_status::ready) << "it waits for the driver";
    EXPECT_GT(fake_->LockedOut(), 0);
    fake_->Hold(false);
    locks.join();
    waits.join();
    looked.get();
    Wait(queue_.get(), ticket);
  }

  std::unique_ptr<DevicePlace> memory_;
  std::unique_ptr<DevicePlace> other_;
};

TEST_F(CudaWaitsTest, TheFirstOperationFindsWhatItNeeds) {
  Prepare();
  const cuda::FakeCounts before = fake_->Counts();
  Run(Copy());
  EXPECT_EQ(other_->Read(), memory_->Read());
  const cuda::FakeCounts after = fake_->Counts();
  EXPECT_EQ(after.pins, before.pins);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.allocations, before.allocations);
  Prepare();
  EXPECT_EQ(fake_->Counts().pins, before.pins) << "once is enough";
}

// All ranks learn of it then; a refusal would leave the others waiting.
TEST_F(CudaWaitsTest, WhatItLacksTheFirstOperationTells) {
  fake_->Fail("cuMemHostAlloc", cuda::Result::kOutOfMemory, 0);
  Prepare();
  Ticket ticket = DomainQueue::kCompleted;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(queue_->Submit(Copy(), &ticket).code(), Code::kOutOfMemory);
}

TEST_F(CudaWaitsTest, ThreadsThatComeTogetherOpenItOnce) {
  const int64_t before = fake_->Counts().allocations;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { Prepare(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_->Counts().allocations, before + 1);
  EXPECT_EQ(fake_->Counts().contexts, 1);
  Run(Copy());
  EXPECT_EQ(fake_->Counts().allocations, before + 1);
}

TEST_F(CudaWaitsTest, NobodyWaitsForAThreadThatPins) {
  Prepare();
  alignas(4096) static std::array<std::byte, 2 * 4096> slots;
  const size_t pinned = domain()->slots().Pinned().size();
  const auto pins = [this] { EXPECT_TRUE(domain_->RegisterSlots(slots.data(), slots.size()).ok()); };
  WhileLockedOut(pins, [&] {
    EXPECT_EQ(domain()->slots().Pinned().size(), pinned);
    EXPECT_STREQ(domain()->slots().not_pinned(), "");
    EXPECT_EQ(domain()->Report().number, 0);
    // Another user of the same pages, who finds them not pinned yet.
    EXPECT_TRUE(domain_->RegisterSlots(slots.data(), slots.size()).ok());
    domain_->UnregisterSlots(slots.data(), slots.size());
  });
  EXPECT_EQ(domain()->slots().Pinned().size(), pinned + 1);
  domain_->UnregisterSlots(slots.data(), slots.size());
  EXPECT_EQ(domain()->slots().Pinned().size(), pinned);
}

TEST_F(CudaWaitsTest, NobodyWaitsForAThreadThatTakesUpAnotherGpu) {
  Prepare();
  const auto takes = [this] {
    const CudaDevice* device = nullptr;
    EXPECT_TRUE(domain()->Use(1, &device).ok());
    EXPECT_EQ(device->ordinal(), 1);
  };
  WhileLockedOut(takes, [this] {
    const CudaDevice* device = nullptr;
    EXPECT_TRUE(domain()->Use(0, &device).ok());
    EXPECT_EQ(domain()->Report().number, 0);
  });
}

// As a call that ends does, while another one begins. What is mapped is no memory of another process, so it fails.
TEST_F(CudaWaitsTest, NobodyWaitsForAThreadThatMapsMemoryOfOthers) {
  Prepare();
  const CudaDevice* device = nullptr;
  ASSERT_TRUE(domain()->Use(0, &device).ok());
  SharedPlace place{};
  place.begin = 4096;
  place.bytes = kBytes;
  const auto maps = [&] {
    std::byte* begin = nullptr;
    EXPECT_EQ(domain()->mappings().Hold(*device, place, &begin).code(), Code::kSystem);
  };
  for (int i = 0; i < 2; ++i) {
    WhileLockedOut(maps, [this] {
      domain()->mappings().Release(memory_->data());
      domain()->mappings().Enter();
      domain()->mappings().Leave();
    });
  }
}

// The pages must stay until the driver has done with them.
TEST_F(CudaWaitsTest, WhatIsBeingPinnedIsGivenBackOnlyThen) {
  Prepare();
  alignas(4096) static std::array<std::byte, 4096> slots;
  const int64_t pinned = fake_->Counts().pinned_ranges;
  std::thread gives_back;
  const auto pins = [this] { EXPECT_TRUE(domain_->RegisterSlots(slots.data(), slots.size()).ok()); };
  WhileLockedOut(pins,
                 [&] { gives_back = std::thread([this] { domain_->UnregisterSlots(slots.data(), slots.size()); }); });
  gives_back.join();
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
}

}  // namespace
}  // namespace annulus
