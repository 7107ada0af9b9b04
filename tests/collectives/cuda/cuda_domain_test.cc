// CudaDomain on the stand-in for CUDA's driver: right results wherever the operands lie, slots pinned in time, nothing
// left behind, failures with their reason.
#include "collectives/cuda/cuda_domain.h"

#include <array>
#include <thread>

#include "collectives/cuda/cuda_streams.h"
#include "tests/collectives/cuda/cuda_fixture.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

Bytes Values(float first) {
  Bytes values(kBytes);
  for (size_t i = 0; i < kCount; ++i) Put(values.data(), i, first + static_cast<float>(i));
  return values;
}

SliceOp Copy(const DevicePlace& from, const DevicePlace& to) {
  SliceOp op;
  op.dst[0] = to.data();
  op.inline_src[0] = from.data();
  op.num_sources = 1;
  op.count = kCount;
  return op;
}

SliceOp Sum(const DevicePlace& a, const DevicePlace& b, const DevicePlace& to) {
  SliceOp op = Copy(a, to);
  op.inline_src[1] = b.data();
  op.num_sources = 2;
  return op;
}

class CudaDomainTest : public CudaFixture {
 protected:
  CudaReport Report() const { return static_cast<CudaDomain*>(domain_)->Report(); }
  // What lies on any device.
  Bytes ReadBack(const std::byte* memory) const {
    Bytes content(kBytes);
    fake_->Read(content.data(), memory, kBytes);
    return content;
  }
};

TEST_F(CudaDomainTest, ResultsAreTheHostReducersWhereverTheOperandsLie) {
  Start({.seed = 1, .most_delay_us = 0});
  for (uint64_t seed = 1; seed <= Rounds(400, 20'000); ++seed) {
    ASSERT_EQ(RunRandomOperation(seed, device_.get(), queue_.get()), "");
  }
  EXPECT_GT(fake_->Counts().launches, 0);
  EXPECT_GT(fake_->Counts().copies, 0);
}

TEST_F(CudaDomainTest, VeryManyAllocationsAreAllKnown) {
  constexpr size_t kEach = 256;
  constexpr size_t kMany = 3 * 4096;
  Start({.seed = 4, .most_delay_us = 0, .allocation_bytes = kEach});
  std::byte* const memory = fake_->Allocate(0, kMany * kEach);
  for (size_t i = 0; i < kMany; ++i)
    ASSERT_TRUE(domain_->Prepare(memory + i * kEach, kEach, ReduceOn::kAuto, queue_.get()).ok()) << i;
  for (size_t i = 0; i < kMany; ++i) {
    DeviceRange range;
    ASSERT_TRUE(domain_->exports()->RangeOf(memory + i * kEach, kEach, &range)) << i;
  }
  fake_->Free(memory);
}

TEST_F(CudaDomainTest, WithoutKernelsTheWorkIsStagedWithTheSameResults) {
  Start({.seed = 2, .most_delay_us = 0, .loads_kernels = false});
  for (uint64_t seed = 1; seed <= Rounds(200, 10'000); ++seed) {
    ASSERT_EQ(RunRandomOperation(seed, device_.get(), queue_.get()), "");
  }
  EXPECT_EQ(fake_->Counts().launches, 0);
}

TEST_F(CudaDomainTest, SlotsThatCannotBePinnedAreStaged) {
  Start({.seed = 3, .most_delay_us = 0, .most_pinned = 2 * CudaStreams::kStagingBytes});
  auto slots = NewPlace(Kind::kSlot, Bytes(4 * CudaStreams::kStagingBytes));
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ASSERT_EQ(RunRandomOperation(seed, device_.get(), queue_.get()), "");
  }
  slots->Write(Values(1));
  const auto device = NewPlace(Kind::kDevice, Values(5));
  Run(Sum(*slots, *device, *device));
  EXPECT_EQ(Get<float>(device->Read().data(), 2), 1 + 2 + 5 + 2);
  EXPECT_EQ(Report().path, CudaReport::Path::kStaged);
  EXPECT_NE(std::string(Report().why).find("cuMemHostRegister"), std::string::npos) << Report().why;
  EXPECT_FALSE(domain_->Prepare(device->data(), kBytes, ReduceOn::kGpu, queue_.get()).ok());
  slots.reset();
  EXPECT_EQ(Report().path, CudaReport::Path::kKernels) << Report().why;
  EXPECT_TRUE(domain_->Prepare(device->data(), kBytes, ReduceOn::kGpu, queue_.get()).ok());
}

TEST_F(CudaDomainTest, OperationsLargerThanTheStagingGoPieceByPiece) {
  Start({.seed = 4, .most_delay_us = 0, .loads_kernels = false});
  std::mt19937_64 random(4);
  const size_t count = CudaStreams::kStagingBytes;  // Elements of 4 bytes each.
  const Bytes a = RandomElements(DataType::kFloat32, count, &random);
  const Bytes b = RandomElements(DataType::kFloat32, count, &random);
  const auto left = NewPlace(Kind::kDevice, a);
  const auto right = NewPlace(Kind::kSlot, b);
  SliceOp op = Sum(*left, *right, *left);
  op.count = count;
  Run(op);
  EXPECT_TRUE(left->Read() == FoldByOracle(DataType::kFloat32, ReduceOp::kSum, 0, {a, b}, count));
}

TEST_F(CudaDomainTest, WhatIsSubmittedBeforeAPollSharesALaunch) {
  Start({.seed = 5});
  const auto slot = NewPlace(Kind::kSlot, Values(1));
  std::vector<std::unique_ptr<DevicePlace>> outputs;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) {
    outputs.push_back(NewPlace(Kind::kDevice, Values(static_cast<float>(i))));
    tickets.emplace_back();
    ASSERT_TRUE(queue_->Submit(Sum(*slot, *outputs.back(), *outputs.back()), &tickets.back()).ok());
  }
  EXPECT_EQ(queue_->unfinished(), 8);
  for (const Ticket ticket : tickets) Wait(queue_.get(), ticket);
  EXPECT_EQ(queue_->unfinished(), 0);
  EXPECT_EQ(fake_->Counts().launches, 1);
  EXPECT_EQ(fake_->Counts().slices, 8);
  EXPECT_EQ(Get<float>(outputs[7]->Read().data(), 1), 1 + 1 + 7 + 1);
}

// Over PCIe a few blocks are as fast as many; within the GPU they are not.
TEST_F(CudaDomainTest, ASliceThatCrossesNoPcieGetsMoreBlocks) {
  Start({.seed = 16});
  const Bytes content(2 << 20);
  const auto slot = NewPlace(Kind::kSlot, content);
  const auto device = NewPlace(Kind::kDevice, content);
  SliceOp op = Sum(*device, *device, *device);
  op.count = content.size() / sizeof(float);
  Run(op);
  EXPECT_EQ(fake_->Counts().blocks, 33u);
  op.inline_src[1] = slot->data();
  Run(op);
  EXPECT_EQ(fake_->Counts().blocks, 16u);
}

TEST_F(CudaDomainTest, AFullQueueWouldBlockAndRecovers) {
  Start({.seed = 6});
  const auto slot = NewPlace(Kind::kSlot, Values(1));
  std::vector<std::unique_ptr<DevicePlace>> outputs;
  std::vector<Ticket> tickets;
  for (;;) {
    outputs.push_back(NewPlace(Kind::kDevice, Values(0)));
    Ticket ticket = DomainQueue::kCompleted;
    const Status status = queue_->Submit(Copy(*slot, *outputs.back()), &ticket);
    if (status.would_block()) break;
    ASSERT_TRUE(status.ok()) << status.ToString();
    tickets.push_back(ticket);
    ASSERT_LT(tickets.size(), 1000u);
  }
  for (const Ticket ticket : tickets) Wait(queue_.get(), ticket);
  Run(Copy(*slot, *outputs.back()));
  EXPECT_EQ(outputs.back()->Read(), slot->Read());
}

TEST_F(CudaDomainTest, ADeviceAndItsSlotsAreTakenWithTheFirstDeviceBuffer) {
  Start({.seed = 7});
  const auto early = NewPlace(Kind::kSlot, Values(1));
  EXPECT_EQ(fake_->Counts().contexts, 0);
  EXPECT_EQ(fake_->Counts().pinned_ranges, 0);
  const auto device = NewPlace(Kind::kDevice, Values(2));
  EXPECT_TRUE(domain_->Owns(device->data()));
  EXPECT_FALSE(domain_->Owns(early->data()));
  EXPECT_FALSE(domain_->Owns(this));
  EXPECT_FALSE(domain_->Owns(nullptr));
  EXPECT_EQ(Report().path, CudaReport::Path::kNone);
  EXPECT_EQ(Report().number, -1);
  Run(Copy(*device, *early));
  EXPECT_EQ(Report().path, CudaReport::Path::kKernels);
  EXPECT_EQ(Report().number, 0);
  EXPECT_EQ(fake_->Counts().contexts, 1);
  const int64_t pinned = fake_->Counts().pinned_ranges;
  {
    const auto late = NewPlace(Kind::kSlot, Values(3));
    EXPECT_EQ(fake_->Counts().pinned_ranges, pinned + 1);
    Run(Sum(*late, *device, *device));
  }
  EXPECT_EQ(fake_->Counts().pinned_ranges, pinned);
  EXPECT_EQ(Get<float>(device->Read().data(), 0), 5);
}

// Where ANNULUS_SMALL_BYTES is 0, some runners have no use for them.
TEST_F(CudaDomainTest, NoSlotsAtAllAreAPlaceToo) {
  Start({.seed = 8});
  std::byte* const none = domain_->AllocateSlots(0);
  ASSERT_NE(none, nullptr);
  domain_->FreeSlots(none, 0);
}

TEST_F(CudaDomainTest, SlotsOfASharedSegmentArePinnedWhereTheyAre) {
  Start({.seed = 8});
  alignas(4096) static std::array<std::byte, 3 * 4096> segment;
  std::byte* const slots = segment.data() + 100;
  ASSERT_TRUE(domain_->RegisterSlots(slots, kBytes).ok());
  ASSERT_TRUE(domain_->RegisterSlots(slots + 10, 10).ok()) << "a range within another shares its pages";
  const auto device = NewPlace(Kind::kDevice, Values(2));
  SliceOp op = Copy(*device, *device);
  op.dst[0] = slots;
  Run(op);
  EXPECT_EQ(Get<float>(slots, 4), 6);
  domain_->UnregisterSlots(slots, kBytes);
  domain_->UnregisterSlots(slots + 10, 10);
}

TEST_F(CudaDomainTest, DrainedWorkTouchesNoMemoryAnyMore) {
  Start({.seed = 9});
  for (int round = 0; round < 20; ++round) {
    const auto slot = NewPlace(Kind::kSlot, Values(1));
    const auto device = NewPlace(Kind::kDevice, Values(2));
    Ticket copy = DomainQueue::kCompleted;
    Ticket sum = DomainQueue::kCompleted;
    const auto other = NewPlace(Kind::kDevice, Values(3));
    ASSERT_TRUE(queue_->Submit(Copy(*slot, *other), &copy).ok());
    ASSERT_TRUE(queue_->Submit(Sum(*slot, *device, *device), &sum).ok());
    bool done = false;
    ASSERT_TRUE(queue_->Poll(copy, &done).ok());
    queue_->Drain();
    // The memory goes now; TearDown sees whether any work was pending on it.
  }
}

TEST_F(CudaDomainTest, EachGpuDoesTheWorkOnItsOwnMemoryAndWhatIsOnTwoIsStaged) {
  for (const bool has_kernels : {true, false}) {
    Start({.seed = 10, .devices = 3, .loads_kernels = has_kernels});
    const auto slot = NewPlace(Kind::kSlot, Values(1));
    const auto first = NewPlace(Kind::kDevice, Values(2));
    std::byte* const second = fake_->Allocate(1, kBytes);
    fake_->Write(second, Values(10).data(), kBytes);
    EXPECT_TRUE(domain_->Owns(second));
    SliceOp on_second = Sum(*slot, *first, *first);
    on_second.inline_src[1] = second;
    on_second.dst[0] = second;
    SliceOp from_first = Copy(*first, *first);
    from_first.dst[0] = second;
    SliceOp on_both = Sum(*slot, *first, *first);
    on_both.dst[1] = second;
    for (const SliceOp& op : {Sum(*slot, *first, *first), on_second}) Run(op);
    EXPECT_EQ(Get<float>(first->Read().data(), 1), 2 + 3);
    EXPECT_EQ(Get<float>(ReadBack(second).data(), 1), 2 + 11);
    Run(from_first);
    EXPECT_EQ(ReadBack(second), first->Read());
    Run(on_both);
    EXPECT_EQ(Get<float>(first->Read().data(), 1), 2 + 5);
    EXPECT_EQ(ReadBack(second), first->Read());
    EXPECT_EQ(fake_->Counts().contexts, 2);
    EXPECT_EQ(Report().number, 0);
    queue_->Drain();
    fake_->Free(second);
  }
}

TEST_F(CudaDomainTest, TicketsOfSeveralGpusAreToldApart) {
  Start({.seed = 14, .devices = 2});
  const auto slot = NewPlace(Kind::kSlot, Values(1));
  std::vector<std::byte*> memory;
  std::vector<Ticket> tickets(16);
  fake_->Hold(true);
  for (int i = 0; i < 16; ++i) {
    memory.push_back(fake_->Allocate(i % 2, kBytes));
    SliceOp op;
    op.dst[0] = memory.back();
    op.inline_src[0] = slot->data();
    op.num_sources = 1;
    op.count = kCount;
    ASSERT_TRUE(queue_->Submit(op, &tickets[static_cast<size_t>(i)]).ok());
  }
  fake_->Hold(false);
  for (const Ticket ticket : tickets) Wait(queue_.get(), ticket);
  EXPECT_EQ(queue_->unfinished(), 0);
  for (std::byte* const each : memory) {
    EXPECT_EQ(ReadBack(each), Values(1));
    fake_->Free(each);
  }
}

TEST_F(CudaDomainTest, AGpuThatIsNotThereIsNamed) {
  Start({.seed = 15});
  std::byte* const nowhere = fake_->Allocate(1, kBytes);
  const Status status = domain_->Prepare(nowhere, kBytes, ReduceOn::kAuto, nullptr);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.message().find("cuDeviceGet"), std::string::npos) << status.message();
  fake_->Free(nowhere);
}

TEST_F(CudaDomainTest, EveryFailureOfTheDriverIsAStatusAndLeavesNothingBehind) {
  constexpr const char* kFunctions[] = {
      "cuPointerGetAttributes", "cuDevicePrimaryCtxRetain",   "cuMemHostAlloc", "cuMemAlloc",
      "cuMemsetD8Async",        "cuStreamCreateWithPriority", "cuMemcpyAsync",  "cuStreamWriteValue32",
      "cuLaunchKernel"};
  for (const char* function : kFunctions) {
    Start({.seed = 11});
    const auto slot = NewPlace(Kind::kSlot, Values(1));
    const auto device = NewPlace(Kind::kDevice, Values(2));
    const auto other = NewPlace(Kind::kDevice, Values(3));
    fake_->Fail(function, cuda::Result::kOutOfMemory, 0);
    if (function == std::string("cuMemHostAlloc"))
      fake_->Fail("cuMemHostRegister", cuda::Result::kNotSupported, cuda::FakeControl::kEveryCall);
    Status status;
    for (const SliceOp& op : {Copy(*slot, *other), Sum(*slot, *device, *device)}) {
      Ticket ticket = DomainQueue::kCompleted;
      bool done = false;
      if (status.ok()) status = queue_->Submit(op, &ticket);
      while (status.ok() && !done) status = queue_->Poll(ticket, &done);
    }
    EXPECT_EQ(status.code(), Code::kOutOfMemory) << function;
    EXPECT_NE(status.message().find(function), std::string::npos) << status.message();
    queue_->Drain();
  }
}

TEST_F(CudaDomainTest, MemoryOfWhichTheDriverDoesNotTellIsNotTheCpus) {
  Start({.seed = 14});
  const auto device = NewPlace(Kind::kDevice, Values(2));
  fake_->Fail("cuPointerGetAttributes", cuda::Result::kLaunchFailed, 0);
  EXPECT_TRUE(domain_->Owns(device->data())) << "or the CPU would die of it";
  const int on_stack = 0;
  fake_->Fail("cuPointerGetAttributes", cuda::Result::kNotInitialized, 0);
  EXPECT_FALSE(domain_->Owns(&on_stack)) << "nobody has device memory";
}

// The user pinned two pages of three, each by itself.
TEST_F(CudaDomainTest, MemoryOfTheUserThatIsPinnedInPartIsStaged) {
  Start({.seed = 15});
  alignas(4096) static std::array<std::byte, 3 * 4096> memory;
  const auto device = NewPlace(Kind::kDevice, Bytes(memory.size(), std::byte{1}));
  const std::unique_ptr<cuda::Driver> driver = cuda::OpenFakeCuda();
  cuda::Context context = nullptr;
  cuda::Device number = 0;
  ASSERT_EQ((*driver)->DeviceGet(&number, 0), cuda::Result::kSuccess);
  ASSERT_EQ((*driver)->DevicePrimaryCtxRetain(&context, number), cuda::Result::kSuccess);
  const auto pin = [&](size_t at) {
    const cuda::ScopedContext scope(*driver, context);
    return (*driver)->MemHostRegister(memory.data() + at, 4096, 0);
  };
  ASSERT_EQ(pin(0), cuda::Result::kSuccess);
  ASSERT_EQ(pin(8192), cuda::Result::kSuccess);
  SliceOp op;
  op.inline_src[0] = memory.data();
  op.inline_src[1] = device->data();
  op.num_sources = 2;
  op.dst[0] = device->data();
  op.type = DataType::kUint8;
  op.count = memory.size();
  Run(op);
  EXPECT_EQ(fake_->Counts().launches, 0);
  op.count = 4096;
  Run(op);
  EXPECT_EQ(fake_->Counts().launches, 1) << "the first page is pinned";
  const cuda::ScopedContext scope(*driver, context);
  (*driver)->MemHostUnregister(memory.data());
  (*driver)->MemHostUnregister(memory.data() + 8192);
  (*driver)->DevicePrimaryCtxRelease(number);
}

TEST_F(CudaDomainTest, KernelsThatDoNotLoadAreNoFailure) {
  for (const char* function : {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncLoad"}) {
    Start({.seed = 12});
    fake_->Fail(function, cuda::Result::kNotSupported, 0);
    const auto slot = NewPlace(Kind::kSlot, Values(1));
    const auto device = NewPlace(Kind::kDevice, Values(2));
    Run(Sum(*slot, *device, *device));
    EXPECT_EQ(Get<float>(device->Read().data(), 1), 5) << function;
    EXPECT_EQ(fake_->Counts().launches, 0) << function;
    EXPECT_EQ(Report().path, CudaReport::Path::kStaged);
    EXPECT_NE(std::string(Report().why).find(function), std::string::npos) << Report().why;
  }
}

TEST_F(CudaDomainTest, CommunicatorsOfSeveralThreadsShareADevice) {
  Start({.seed = 13});
  const auto work = [this] {
    std::unique_ptr<DomainQueue> queue;
    ASSERT_TRUE(domain_->OpenQueue(ReduceOn::kAuto, &queue).ok());
    const auto slot = NewPlace(Kind::kSlot, Values(1));
    const auto device = NewPlace(Kind::kDevice, Values(2));
    for (int round = 0; round < 50; ++round) {
      Ticket ticket = DomainQueue::kCompleted;
      ASSERT_TRUE(queue->Submit(Sum(*slot, *device, *device), &ticket).ok());
      Wait(queue.get(), ticket);
    }
    EXPECT_EQ(Get<float>(device->Read().data(), 0), 52);
  };
  std::thread other(work);
  work();
  other.join();
}

}  // namespace
}  // namespace annulus
