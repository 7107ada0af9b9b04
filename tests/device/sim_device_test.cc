// The simulated device: untouchable memory, late and unordered work, right results, and misuse that stops at once.
#include "tests/device/sim_device.h"

#include <gtest/gtest.h>

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

void Wait(Device* device, Device::Ticket ticket) {
  bool done = false;
  for (int i = 0; i < kMostPolls && !done; ++i) ASSERT_TRUE(device->Poll(ticket, &done).ok());
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
};

TEST_F(SimDeviceTest, ItIsNotHostAccessible) { EXPECT_FALSE(device_.host_accessible()); }

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
  Device::Ticket ticket = Device::kCompleted;
  const SliceOp op = Sum(a, b, sum, reinterpret_cast<std::byte*>(slot.data()));
  ASSERT_TRUE(device_.Submit(op, &ticket).ok());
  EXPECT_NE(ticket, Device::kCompleted);
  EXPECT_EQ(device_.pending(), 1);
  bool done = true;
  ASSERT_TRUE(device_.Poll(ticket, &done).ok());
  EXPECT_FALSE(done) << "never done by its first poll";
  Wait(&device_, ticket);
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
  Device::Ticket ticket = Device::kCompleted;
  ASSERT_TRUE(device_.Submit(op, &ticket).ok());
  Wait(&device_, ticket);
  EXPECT_EQ(ReadBack(op.dst[0])[2], 1011.0f + 3 * 2);
}

TEST_F(SimDeviceTest, AFullQueueWouldBlockAndRecovers) {
  const std::vector<float> host = Values(0);
  std::vector<Device::Ticket> tickets;
  Device::Ticket ticket = Device::kCompleted;
  for (int i = 0; i < SimDeviceOptions().queue_length; ++i) {
    ASSERT_TRUE(device_.Submit(Copy(Bytes(host), device_.Allocate(kBytes)), &ticket).ok());
    tickets.push_back(ticket);
  }
  std::byte* more = device_.Allocate(kBytes);
  EXPECT_TRUE(device_.Submit(Copy(Bytes(host), more), &ticket).would_block());
  for (Device::Ticket earlier : tickets) Wait(&device_, earlier);
  ASSERT_TRUE(device_.Submit(Copy(Bytes(host), more), &ticket).ok());
  Wait(&device_, ticket);
  EXPECT_EQ(ReadBack(more), host);
}

// In which order independent operations were seen done.
std::string OrderOf(uint64_t seed) {
  SimDevice device({.seed = seed});
  const std::vector<float> host = Values(0);
  std::array<Device::Ticket, 8> tickets{};
  for (Device::Ticket& ticket : tickets) {
    EXPECT_TRUE(device.Submit(Copy(Bytes(host), device.Allocate(kBytes)), &ticket).ok());
  }
  std::string order;
  std::array<bool, 8> seen{};
  for (int i = 0; i < kMostPolls && order.size() < tickets.size(); ++i) {
    const size_t index = static_cast<size_t>(i) % tickets.size();
    bool done = false;
    EXPECT_TRUE(device.Poll(tickets[index], &done).ok());
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
  const std::vector<float> host = Values(0);
  Device::Ticket ticket = Device::kCompleted;
  ASSERT_TRUE(device.Submit(Copy(Bytes(host), device.Allocate(kBytes)), &ticket).ok());
  bool done = false;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(device.Poll(ticket, &done).ok());
  EXPECT_FALSE(done);
  EXPECT_TRUE(clock.RunNext());
  ASSERT_TRUE(device.Poll(ticket, &done).ok());
  EXPECT_TRUE(done);
  EXPECT_GE(clock.now(), SimDeviceOptions().min_time);
}

TEST(SimDeviceOrderTest, ADeviceMayGoBeforeItsWorkIsDone) {
  SimClock clock(1);
  auto device = std::make_unique<SimDevice>(SimDeviceOptions{.seed = 1, .clock = &clock});
  const std::vector<float> host = Values(0);
  Device::Ticket ticket = Device::kCompleted;
  ASSERT_TRUE(device->Submit(Copy(Bytes(host), device->Allocate(kBytes)), &ticket).ok());
  device.reset();
  EXPECT_TRUE(clock.RunNext());
}

TEST_F(SimDeviceTest, WhatIsNotDoneReadsAsPoison) {
  const std::vector<float> from = Values(1);
  std::vector<float> slot = Values(1);  // Already right: only the poison tells that nobody waited.
  Device::Ticket ticket = Device::kCompleted;
  ASSERT_TRUE(device_.Submit(Copy(Bytes(from), reinterpret_cast<std::byte*>(slot.data())), &ticket).ok());
  EXPECT_NE(slot, from);
  Wait(&device_, ticket);
  EXPECT_EQ(slot, from);
}

TEST_F(SimDeviceTest, AMissingWaitBetweenOperationsStopsAtOnce) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  std::byte* a = NewDeviceValues(1);
  std::byte* b = device_.Allocate(kBytes);
  std::byte* c = device_.Allocate(kBytes);
  Device::Ticket ticket = Device::kCompleted;
  ASSERT_TRUE(device_.Submit(Copy(a, b), &ticket).ok());
  Device::Ticket later = Device::kCompleted;
  EXPECT_DEATH((void)device_.Submit(Copy(b, c), &later), "missing wait") << "reads what is not written yet";
  EXPECT_DEATH((void)device_.Submit(Copy(c, a), &later), "missing wait") << "overwrites what is still read";
  EXPECT_DEATH((void)device_.Submit(Copy(c, b), &later), "missing wait") << "two results in one place";
  Wait(&device_, ticket);
  ASSERT_TRUE(device_.Submit(Copy(b, c), &later).ok());
  Wait(&device_, later);
  EXPECT_EQ(ReadBack(c), Values(1));
}

TEST_F(SimDeviceTest, AnOperationBeyondItsAllocationStopsAtOnce) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::vector<float> host = Values(0);
  std::byte* small = device_.Allocate(kBytes / 2);
  Device::Ticket ticket = Device::kCompleted;
  EXPECT_DEATH((void)device_.Submit(Copy(Bytes(host), small), &ticket), "check failed");
}

}  // namespace
}  // namespace annulus
