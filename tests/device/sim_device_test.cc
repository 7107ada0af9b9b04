// The simulated device: untouchable memory, late and unordered work, right results, and misuse that stops at once.
#include "tests/device/sim_device.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "transport/sim/sim_clock.h"

namespace annulus {
namespace {

constexpr int kMostPolls = 100000;
constexpr size_t kCount = 256;
constexpr size_t kBytes = kCount * sizeof(float);

std::vector<float> Values(float first) {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

const std::byte* Bytes(const std::vector<float>& values) { return reinterpret_cast<const std::byte*>(values.data()); }

SliceOp Copy(const std::byte* from, std::byte* to) {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = from;
  op.num_sources = 1;
  op.count = kCount;
  return op;
}

SliceOp Sum(const std::byte* a, const std::byte* b, std::byte* to, std::byte* also = nullptr) {
  SliceOp op = Copy(a, to);
  op.dst[1] = also;
  op.inline_src[1] = b;
  op.num_sources = 2;
  return op;
}

std::unique_ptr<DomainQueue> QueueOf(SimDevice* device) {
  std::unique_ptr<DomainQueue> queue;
  EXPECT_TRUE(device->OpenQueue(ReduceOn::kAuto, &queue).ok());
  return queue;
}

void Wait(DomainQueue* queue, DomainQueue::Ticket ticket) {
  bool done = false;
  for (int i = 0; i < kMostPolls && !done; ++i) ASSERT_TRUE(queue->Poll(ticket, &done).ok());
  ASSERT_TRUE(done);
}

class SimDeviceTest : public ::testing::Test {
 protected:
  std::byte* NewDeviceValues(float first) {
    std::byte* memory = device_.Allocate(kBytes);
    device_.Write(memory, Values(first).data(), kBytes);
    return memory;
  }
  std::vector<float> ReadBack(const std::byte* memory) const {
    std::vector<float> values(kCount);
    device_.Read(values.data(), memory, kBytes);
    return values;
  }

  SimDevice device_{{.seed = 3}};
  std::unique_ptr<DomainQueue> queue_ = QueueOf(&device_);
};

TEST_F(SimDeviceTest, ItOwnsWhatItAllocatedAndIsNoHostMemory) {
  std::byte* const memory = device_.Allocate(kBytes);
  EXPECT_TRUE(device_.Owns(memory) && device_.Owns(memory + kBytes - 1));
  EXPECT_FALSE(device_.Owns(&device_));
  EXPECT_FALSE(device_.Owns(nullptr));
  EXPECT_EQ(device_.kind(), MemoryKind::kDevice);
  EXPECT_EQ(queue_->kind(), MemoryKind::kDevice);
  device_.Free(memory);
  EXPECT_FALSE(device_.Owns(memory));
}

TEST_F(SimDeviceTest, ATouchByTheCpuDies) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  volatile std::byte* memory = NewDeviceValues(1);
  EXPECT_DEATH(memory[0] = std::byte{1}, "");
  EXPECT_DEATH((void)memory[kBytes - 1], "");
}

TEST_F(SimDeviceTest, WorkIsDoneLaterAndRight) {
  std::byte* a = NewDeviceValues(1);
  std::byte* b = NewDeviceValues(100);
  std::byte* sum = device_.Allocate(kBytes);
  std::vector<float> slot(kCount, -1.0f);  // Host memory passes as it is.
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  const SliceOp op = Sum(a, b, sum, reinterpret_cast<std::byte*>(slot.data()));
  ASSERT_TRUE(queue_->Submit(op, &ticket).ok());
  EXPECT_NE(ticket, DomainQueue::kCompleted);
  EXPECT_EQ(device_.pending(), 1);
  bool done = true;
  ASSERT_TRUE(queue_->Poll(ticket, &done).ok());
  EXPECT_FALSE(done) << "never done by its first poll";
  Wait(queue_.get(), ticket);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(slot[i], 101.0f + 2 * static_cast<float>(i));
  EXPECT_EQ(ReadBack(sum), slot);
}

TEST_F(SimDeviceTest, ManySourcesAreFoldedFromDeviceAndHost) {
  const std::vector<float> host = Values(1000);
  const std::byte* sources[3] = {NewDeviceValues(1), Bytes(host), NewDeviceValues(10)};
  SliceOp op;
  op.src = sources;
  op.num_sources = 3;
  op.count = kCount;
  op.dst[0] = device_.Allocate(kBytes);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  ASSERT_TRUE(queue_->Submit(op, &ticket).ok());
  Wait(queue_.get(), ticket);
  EXPECT_EQ(ReadBack(op.dst[0])[2], 1011.0f + 3 * 2);
}

TEST_F(SimDeviceTest, AFullQueueWouldBlockAndRecovers) {
  const std::vector<float> host = Values(0);
  std::vector<DomainQueue::Ticket> tickets;
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  for (int i = 0; i < SimDeviceOptions().queue_length; ++i) {
    ASSERT_TRUE(queue_->Submit(Copy(Bytes(host), device_.Allocate(kBytes)), &ticket).ok());
    tickets.push_back(ticket);
  }
  std::byte* more = device_.Allocate(kBytes);
  EXPECT_TRUE(queue_->Submit(Copy(Bytes(host), more), &ticket).would_block());
  for (DomainQueue::Ticket earlier : tickets) Wait(queue_.get(), earlier);
  ASSERT_TRUE(queue_->Submit(Copy(Bytes(host), more), &ticket).ok());
  Wait(queue_.get(), ticket);
  EXPECT_EQ(ReadBack(more), host);
}

// In which order independent operations were seen done.
std::string OrderOf(uint64_t seed) {
  SimDevice device({.seed = seed});
  const std::unique_ptr<DomainQueue> queue = QueueOf(&device);
  const std::vector<float> host = Values(0);
  std::array<DomainQueue::Ticket, 8> tickets{};
  for (DomainQueue::Ticket& ticket : tickets) {
    EXPECT_TRUE(queue->Submit(Copy(Bytes(host), device.Allocate(kBytes)), &ticket).ok());
  }
  std::string order;
  std::array<bool, 8> seen{};
  for (int i = 0; i < kMostPolls && order.size() < tickets.size(); ++i) {
    const size_t index = static_cast<size_t>(i) % tickets.size();
    bool done = false;
    EXPECT_TRUE(queue->Poll(tickets[index], &done).ok());
    if (done && !seen[index]) order += std::to_string(index);
    seen[index] |= done;
  }
  EXPECT_GT(device.overtakings(), 0);
  return order;
}

TEST(SimDeviceOrderTest, TheOrderIsRandomAndTheSeedReplaysIt) {
  EXPECT_EQ(OrderOf(1), OrderOf(1));
  EXPECT_NE(OrderOf(1), OrderOf(2));
}

TEST(SimDeviceOrderTest, VirtualTimeFinishesWorkAndPollsDoNot) {
  SimClock clock(1);
  SimDevice device({.seed = 1, .clock = &clock});
  const std::unique_ptr<DomainQueue> queue = QueueOf(&device);
  const std::vector<float> host = Values(0);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  ASSERT_TRUE(queue->Submit(Copy(Bytes(host), device.Allocate(kBytes)), &ticket).ok());
  bool done = false;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue->Poll(ticket, &done).ok());
  EXPECT_FALSE(done);
  EXPECT_TRUE(clock.RunNext());
  ASSERT_TRUE(queue->Poll(ticket, &done).ok());
  EXPECT_TRUE(done);
  EXPECT_GE(clock.now(), SimDeviceOptions().min_time);
}

TEST(SimDeviceOrderTest, ADeviceMayGoBeforeItsWorkIsDone) {
  SimClock clock(1);
  auto device = std::make_unique<SimDevice>(SimDeviceOptions{.seed = 1, .clock = &clock});
  const std::vector<float> host = Values(0);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  std::unique_ptr<DomainQueue> queue = QueueOf(device.get());
  ASSERT_TRUE(queue->Submit(Copy(Bytes(host), device->Allocate(kBytes)), &ticket).ok());
  queue.reset();
  device.reset();
  EXPECT_TRUE(clock.RunNext());
}

TEST_F(SimDeviceTest, WhatIsNotDoneReadsAsPoison) {
  const std::vector<float> from = Values(1);
  std::vector<float> slot = Values(1);  // Already right: only the poison tells that nobody waited.
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  ASSERT_TRUE(queue_->Submit(Copy(Bytes(from), reinterpret_cast<std::byte*>(slot.data())), &ticket).ok());
  EXPECT_NE(slot, from);
  Wait(queue_.get(), ticket);
  EXPECT_EQ(slot, from);
}

TEST_F(SimDeviceTest, AMissingWaitBetweenOperationsStopsAtOnce) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  std::byte* a = NewDeviceValues(1);
  std::byte* b = device_.Allocate(kBytes);
  std::byte* c = device_.Allocate(kBytes);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  ASSERT_TRUE(queue_->Submit(Copy(a, b), &ticket).ok());
  DomainQueue::Ticket later = DomainQueue::kCompleted;
  EXPECT_DEATH((void)queue_->Submit(Copy(b, c), &later), "missing wait") << "reads what is not written yet";
  EXPECT_DEATH((void)queue_->Submit(Copy(c, a), &later), "missing wait") << "overwrites what is still read";
  EXPECT_DEATH((void)queue_->Submit(Copy(c, b), &later), "missing wait") << "two results in one place";
  Wait(queue_.get(), ticket);
  ASSERT_TRUE(queue_->Submit(Copy(b, c), &later).ok());
  Wait(queue_.get(), later);
  EXPECT_EQ(ReadBack(c), Values(1));
}

TEST_F(SimDeviceTest, AnOperationBeyondItsAllocationStopsAtOnce) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::vector<float> host = Values(0);
  std::byte* small = device_.Allocate(kBytes / 2);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  EXPECT_DEATH((void)queue_->Submit(Copy(Bytes(host), small), &ticket), "check failed");
}

TEST_F(SimDeviceTest, DrainedWorkTouchesNoMemoryAnyMore) {
  const std::vector<float> from = Values(1);
  std::vector<float> slot = Values(5);
  const std::unique_ptr<DomainQueue> other = QueueOf(&device_);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  DomainQueue::Ticket others = DomainQueue::kCompleted;
  std::byte* const memory = device_.Allocate(kBytes);
  ASSERT_TRUE(queue_->Submit(Copy(Bytes(from), reinterpret_cast<std::byte*>(slot.data())), &ticket).ok());
  ASSERT_TRUE(other->Submit(Copy(Bytes(from), memory), &others).ok());
  queue_->Drain();
  EXPECT_EQ(device_.pending(), 1) << "the other queue's";
  slot = Values(7);
  Wait(other.get(), others);
  EXPECT_EQ(slot, Values(7));
  EXPECT_EQ(ReadBack(memory), from);
}

TEST_F(SimDeviceTest, OperandsThatNobodyRegisteredAreCounted) {
  std::byte* const slots = device_.AllocateSlots(2 * kBytes);
  std::vector<float> registered = Values(1);
  ASSERT_TRUE(device_.RegisterSlots(reinterpret_cast<std::byte*>(registered.data()), kBytes).ok());
  EXPECT_EQ(device_.registrations(), 2u);
  DomainQueue::Ticket ticket = DomainQueue::kCompleted;
  ASSERT_TRUE(queue_->Submit(Sum(Bytes(registered), NewDeviceValues(2), slots, slots + kBytes), &ticket).ok());
  Wait(queue_.get(), ticket);
  EXPECT_EQ(device_.unregistered(), 0);
  device_.UnregisterSlots(reinterpret_cast<std::byte*>(registered.data()), kBytes);
  ASSERT_TRUE(queue_->Submit(Sum(Bytes(registered), NewDeviceValues(2), slots), &ticket).ok());
  Wait(queue_.get(), ticket);
  EXPECT_EQ(device_.unregistered(), 1);
  device_.FreeSlots(slots, 2 * kBytes);
  EXPECT_EQ(device_.registrations(), 0u);
}

TEST(SimDeviceThreadTest, ItsDescriptorTellsWhenWorkHasFinished) {
  SimDevice device({.seed = 1, .has_thread = true});
  const std::unique_ptr<DomainQueue> queue = QueueOf(&device);
  const std::unique_ptr<DomainQueue> idle = QueueOf(&device);
  ASSERT_GE(queue->wake_fd(), 0);
  const std::vector<float> from = Values(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> to(kCount);
    DomainQueue::Ticket ticket = DomainQueue::kCompleted;
    ASSERT_TRUE(queue->Submit(Copy(Bytes(from), reinterpret_cast<std::byte*>(to.data())), &ticket).ok());
    EXPECT_EQ(queue->unfinished(), 1);
    constexpr int kPatienceMs = 20'000;
    pollfd watched{queue->wake_fd(), POLLIN, 0};
    ASSERT_EQ(poll(&watched, 1, kPatienceMs), 1);
    eventfd_t finished = 0;
    ASSERT_EQ(eventfd_read(queue->wake_fd(), &finished), 0);
    bool done = false;
    ASSERT_TRUE(queue->Poll(ticket, &done).ok());
    EXPECT_TRUE(done);
    EXPECT_EQ(queue->unfinished(), 0);
    EXPECT_EQ(to, from);
  }
  pollfd other{idle->wake_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&other, 1, 0), 0) << "nothing of its own has finished";
}

}  // namespace
}  // namespace annulus
