// A driver that lets nobody in, as while it waits for streams: who drives calls has what it needs without it, and who
// only looks waits for no thread that is in there.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/cuda/cuda_domain.h"
#include "collectives/cuda/cuda_queue.h"
#include "collectives/cuda/pinned/pinned_slots.h"
#include "tests/collectives/cuda/cuda_fixture.h"
#include "tests/cuda/mapped_memory.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kPage = 4096;
constexpr auto kSoon = std::chrono::seconds(20);
constexpr auto kAWhile = std::chrono::milliseconds(100);  // That one who waits does wait.

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
  fake_->Fail("cuMemHostRegister", cuda::Result::kNotSupported, cuda::FakeControl::kEveryCall);
  fake_->Fail("cuMemHostAlloc", cuda::Result::kOutOfMemory, 0);
  Prepare();
  Ticket ticket = DomainQueue::kCompleted;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(queue_->Submit(Copy(), &ticket).code(), Code::kOutOfMemory);
}

// So that calls that need no work of the GPU do not end a later one.
TEST_F(CudaWaitsTest, WhatNobodyWasToldOfIsTriedAgain) {
  fake_->Fail("cuMemHostRegister", cuda::Result::kNotSupported, cuda::FakeControl::kEveryCall);
  fake_->Fail("cuMemHostAlloc", cuda::Result::kOutOfMemory, 0);
  Prepare();
  Prepare();
  Run(Copy());
}

TEST_F(CudaWaitsTest, WhatHasNoOperandOnAGpuTakesUpNoOther) {
  std::byte* const there = fake_->Allocate(1, kBytes);
  ASSERT_TRUE(domain_->Prepare(there, kBytes, ReduceOn::kAuto, queue_.get()).ok());
  const auto from = NewPlace(Kind::kPageable, Bytes(kBytes, std::byte{3}));
  const auto to = NewPlace(Kind::kPageable, Bytes(kBytes));
  SliceOp op = Copy();
  op.inline_src[0] = from->data();
  op.dst[0] = to->data();
  Run(op);
  EXPECT_EQ(to->Read(), from->Read());
  EXPECT_EQ(fake_->Counts().contexts, 1);
  EXPECT_EQ(domain()->Report().number, 1);
  fake_->Free(there);
}

TEST_F(CudaWaitsTest, ThreadsThatComeTogetherOpenItOnce) {
  Prepare();
  const int64_t before = fake_->Counts().allocations;
  const CudaDevice* device = nullptr;
  ASSERT_TRUE(domain()->Use(0, &device).ok());
  std::unique_ptr<DomainQueue> opened;
  ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kAuto, &opened).ok());
  auto* const queue = static_cast<CudaQueue*>(opened.get());
  std::future<void> second;
  WhileLockedOut([&] { queue->Prepare(*device); },
                 [&] {
                   second = std::async(std::launch::async, [&] { queue->Prepare(*device); });
                   EXPECT_EQ(second.wait_for(kAWhile), std::future_status::timeout);
                   EXPECT_EQ(fake_->LockedOut(), 1);
                 });
  second.get();
  EXPECT_EQ(fake_->Counts().allocations, before + 1);
}

// The one that is late neither opens it too nor fails if it could not.
TEST_F(CudaWaitsTest, ThreadsThatComeTogetherTakeUpAGpuOnce) {
  Prepare();
  const auto takes = [this] {
    const CudaDevice* device = nullptr;
    EXPECT_TRUE(domain()->Use(1, &device).ok());
  };
  std::future<void> second;
  WhileLockedOut(takes, [&] {
    second = std::async(std::launch::async, takes);
    EXPECT_EQ(second.wait_for(kAWhile), std::future_status::timeout);
    EXPECT_EQ(fake_->LockedOut(), 1);
  });
  second.get();
  EXPECT_EQ(fake_->Counts().contexts, 2);
}

TEST_F(CudaWaitsTest, AThreadThatFailedToTakeUpAGpuLeavesItToOthers) {
  const CudaDevice* device = nullptr;
  fake_->Fail("cuDevicePrimaryCtxRetain", cuda::Result::kOutOfMemory, 0);
  EXPECT_EQ(domain()->Use(0, &device).code(), Code::kOutOfMemory);
  EXPECT_TRUE(domain()->Use(0, &device).ok());
}

TEST_F(CudaWaitsTest, NobodyWaitsForAThreadThatPins) {
  Prepare();
  alignas(4096) static std::array<std::byte, 2 * 4096> slots;
  const size_t pinned = domain()->slots().Pinned().size();
  const auto pins = [this] { EXPECT_TRUE(domain_->RegisterSlots(slots.data(), slots.size()).ok()); };
  WhileLockedOut(pins, [&] {
    EXPECT_EQ(domain()->slots().Pinned().size(), pinned);
    EXPECT_EQ(domain()->slots().not_pinned(), "");
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
    EXPECT_EQ(domain()->mappings().Hold(*device, place, {}, &begin).code(), Code::kSystem);
  };
  for (int i = 0; i < 2; ++i) {
    WhileLockedOut(maps, [&] {
      domain()->mappings().Release(*device, memory_->data());
      domain()->mappings().Enter();
      domain()->mappings().Leave();
    });
  }
}

// The same of memory by descriptors, and of a thread that asks which pieces a buffer lies in.
TEST_F(CudaWaitsTest, NobodyWaitsForAThreadThatFindsOrMapsPieces) {
  Prepare();
  const CudaDevice* device = nullptr;
  ASSERT_TRUE(domain()->Use(0, &device).ok());
  std::unique_ptr<MappedMemory> memory;
  ASSERT_TRUE(MappedMemory::Make(domain()->driver(), device->context(), {1, 0, true}, &memory).ok());
  std::shared_ptr<const CudaPieces::Run> run;
  const auto finds = [&] { EXPECT_TRUE(domain()->pieces().Find(*device, memory->data(), 1, &run).ok()); };
  WhileLockedOut(finds, [this] { EXPECT_EQ(domain()->pieces().At(1), nullptr); });
  FileLetter letter;
  ASSERT_TRUE(run->Export(&letter).ok());
  SharedPlace place;
  place.begin = run->begin();
  place.bytes = run->bytes();
  place.files = 1;
  letter.run = run->number();
  std::memcpy(place.handle, &letter.run, sizeof letter.run);
  const auto maps = [&] {
    std::byte* begin = nullptr;
    EXPECT_TRUE(domain()->mappings().Hold(*device, place, &letter, &begin).ok());
    domain()->mappings().Release(*device, begin);
  };
  WhileLockedOut(maps, [&] {
    domain()->mappings().Release(*device, memory_->data());
    domain()->mappings().Enter();
    EXPECT_FALSE(domain()->mappings().Leave());
  });
  run.reset();
  domain()->pieces().Clear();
}

// The pages must stay until the driver has done with them.
TEST_F(CudaWaitsTest, WhatIsBeingPinnedIsGivenBackOnlyThen) {
  Prepare();
  alignas(kPage) static std::array<std::byte, kPage> slots;
  const int64_t pinned = fake_->Counts().pinned_ranges;
  std::future<void> gives_back;
  const auto pins = [this] { EXPECT_TRUE(domain_->RegisterSlots(slots.data(), slots.size()).ok()); };
  WhileLockedOut(pins, [&] {
    gives_back = std::async(std::launch::async, [this] { domain_->UnregisterSlots(slots.data(), slots.size()); });
    EXPECT_EQ(gives_back.wait_for(kAWhile), std::future_status::timeout);
  });
  gives_back.get();
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
}

// What is there already, what comes meanwhile, and what goes meanwhile.
TEST_F(CudaWaitsTest, WhoComesWhileAllIsPinnedWaitsForItsEnd) {
  Prepare();
  alignas(kPage) static std::array<std::byte, 5 * kPage> memory;
  const std::byte* const first = memory.data();
  const std::byte* const second = first + 2 * kPage;
  const std::byte* const late = first + 4 * kPage;
  const CudaDevice* device = nullptr;
  ASSERT_TRUE(domain()->Use(0, &device).ok());
  const int64_t pinned = fake_->Counts().pinned_ranges;
  PinnedSlots slots;
  slots.Add(first, kPage);
  slots.Add(second, kPage);
  std::vector<std::future<void>> wait;
  WhileLockedOut([&] { slots.PinFor(*device); },
                 [&] {
                   wait.push_back(std::async(std::launch::async, [&] { slots.PinFor(*device); }));
                   wait.push_back(std::async(std::launch::async, [&] { slots.Add(late, kPage); }));
                   wait.push_back(std::async(std::launch::async, [&] { slots.Remove(first, kPage); }));
                   for (auto& each : wait) EXPECT_EQ(each.wait_for(kAWhile), std::future_status::timeout);
                   EXPECT_TRUE(slots.Pinned().empty());
                 });
  for (auto& each : wait) each.get();
  const std::vector<PinnedSlots::Range> expected = {{second, kPage}, {late, kPage}};
  EXPECT_EQ(slots.Pinned(), expected);
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned + 2);
  slots.Remove(late, kPage);
  slots.ForgetDevice();
  slots.Remove(second, kPage);
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
}

// Another thread has its call refused too, though the slots that cannot be pinned are the last ones.
TEST_F(CudaWaitsTest, ACallThatNeedsPinnedSlotsWaitsUntilTheyAre) {
  constexpr size_t kRanges = 4096;  // So many that the other thread comes meanwhile.
  alignas(kPage) static std::array<std::byte, kRanges * kPage> slots;
  for (size_t i = 0; i < kRanges; ++i) ASSERT_TRUE(domain_->RegisterSlots(&slots[i * kPage], kPage).ok());
  fake_->Fail("cuMemHostRegister", cuda::Result::kOutOfMemory, int{kRanges} - 1);
  const auto take = [this] { return domain_->Prepare(memory_->data(), kBytes, ReduceOn::kGpu, nullptr); };
  std::future<Status> first = std::async(std::launch::async, take);
  EXPECT_TRUE(ComesTrue([this] { return fake_->Counts().pins > 0; }));
  for (const Status& status : {take(), first.get()}) {
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find("slots are not pinned"), std::string::npos) << status.message();
  }
  for (size_t i = 0; i < kRanges; ++i) domain_->UnregisterSlots(&slots[i * kPage], kPage);
}

// Whoever was left out has no part in what comes there later.
TEST_F(CudaWaitsTest, ARangeThatWasLeftOutGivesNothingBack) {
  Prepare();
  alignas(kPage) static std::array<std::byte, 4 * kPage> memory;
  std::byte* const begin = memory.data();
  const int64_t pinned = fake_->Counts().pinned_ranges;
  const auto add = [&](size_t page, size_t pages) {
    EXPECT_TRUE(domain_->RegisterSlots(begin + page * kPage, pages * kPage).ok());
  };
  const auto remove = [&](size_t page, size_t pages) { domain_->UnregisterSlots(begin + page * kPage, pages * kPage); };
  add(1, 1);
  add(1, 2);
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned + 1);
  remove(1, 1);
  add(0, 4);
  remove(1, 2);
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned + 1) << "of the last one";
  remove(0, 4);
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
}

}  // namespace
}  // namespace annulus
