// Shared memory: several slices that are lent at once, loans that end late, and what was asked for but changes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/transport/shm/shm_loans.h"

namespace annulus {
namespace {

// Each Lends is for one send.
TEST_F(ShmLoansTest, OnlyWhatWasAskedForIsLent) {
  Post(1);
  Send again;
  again.data = memory_.data();
  again.bytes = again.ready = kBytes;
  EXPECT_EQ(end(0).PostSend(&again).code(), Code::kInvalidArgument) << "lent once, not twice";
  ASSERT_TRUE(lends());
  again.bytes = again.ready = kBytes - 64;
  EXPECT_EQ(end(0).PostSend(&again).code(), Code::kInvalidArgument) << "not these bytes";
}

// Else a send would wait for its receive that must not.
TEST_F(ShmLoansTest, ALoanStaysOneThoughItsMemoryIsRegisteredMeanwhile) {
  constexpr size_t kRegion = size_t{1} << 20;
  void* const region = mmap(nullptr, kRegion, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(region, MAP_FAILED);
  std::memset(region, 5, kRegion);
  ASSERT_TRUE(in_place(0).Lends(static_cast<std::byte*>(region), kBytes));
  ASSERT_TRUE(TestRegistry().Register(region, kRegion).ok());
  Send send;
  send.data = static_cast<std::byte*>(region);
  send.bytes = send.ready = kBytes;
  ASSERT_TRUE(end(0).PostSend(&send).ok());
  EXPECT_NE(descriptor().slot.load() & kShmLent, 0u);
  ASSERT_TRUE(SpinUntil([&] { return send.code == Code::kOk; }, {0})) << "waits for a receive";
  EXPECT_FALSE(in_place(0).Lends(static_cast<std::byte*>(region), kBytes));
  ASSERT_TRUE(TestRegistry().Deregister(region).ok());
  munmap(region, kRegion);
}

// One call of the kernel's for all of them: it copies all or none.
TEST_F(ShmLoansTest, WhatHasComeIsReadTogether) {
  constexpr int kTogether = 3;
  std::vector<std::vector<std::byte>> landings(kTogether, std::vector<std::byte>(kBytes));
  for (const bool is_good : {true, false}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    std::vector<Recv*> recvs;
    std::vector<const Send*> sends;
    for (int i = 0; i < kTogether; ++i) {
      sends.push_back(Post(1));
      Recv* const recv = &recvs_.emplace_back();
      recv->landing = landings[static_cast<size_t>(i)].data();
      recv->capacity = kBytes;
      ASSERT_TRUE(end(1).PostRecv(recv).ok());
      recvs.push_back(recv);
    }
    const uint64_t nowhere = 16;
    if (!is_good) std::memcpy(pair_.mapping().direction(0).ring[kTogether - 1].payload, &nowhere, sizeof(nowhere));
    ASSERT_TRUE(Progress(1).ok());
    for (const Recv* recv : recvs) EXPECT_EQ(recv->code == Code::kOk, is_good);
    ASSERT_TRUE(SpinUntil([&] { return recvs.back()->code != Code::kInProgress; }, {1, 0}));
    for (Recv* recv : recvs) {
      EXPECT_EQ(recv->data == recv->landing, is_good) << "read by a call of its own";
      ASSERT_EQ(recv->code, Code::kOk);
      EXPECT_EQ(std::memcmp(recv->data, Data(1).data(), kBytes), 0);
      if (recv->data != recv->landing) end(1).Release(recv);
    }
    ASSERT_TRUE(SpinUntil([&] { return sends.back()->code != Code::kInProgress; }, {0}));
    for (const Send* send : sends) EXPECT_EQ(send->code, Code::kOk);
    for (std::vector<std::byte>& landing : landings) std::ranges::fill(landing, std::byte{0});
  }
}

TEST_F(ShmLoansTest, WhatIsWithdrawnIsNotReadWithThatBeforeIt) {
  Recv* const first = Expect(true);
  std::vector<std::byte> other(kBytes);
  Recv* const second = &recvs_.emplace_back();
  second->landing = other.data();
  second->capacity = kBytes;
  ASSERT_TRUE(end(1).PostRecv(second).ok());
  Post(1);
  Post(1);
  const auto& direction = pair_.mapping().direction(0);
  direction.claims[direction.ring[1].slot.load() & ~kShmLent].state = ShmClaimState::kWithdrawn;
  ASSERT_TRUE(Progress(1).ok());
  ExpectData(first, 1);
  EXPECT_FALSE(second->started);
  EXPECT_EQ(other, std::vector<std::byte>(kBytes));
}

// The sender gives up while the receiver reads: either all of what was meant arrives, or nothing does.
TEST_F(ShmLoansTest, AWithdrawalDuringARead) {
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    Recv* const recv = Expect(true);
    const Send* const send = Post(1);
    std::atomic<bool> begins{false};
    std::thread receiver([&] {
      begins = true;
      static_cast<void>(Progress(1));
    });
    while (!begins) continue;
    for (std::atomic<int> i{0}; i < round * 20; ++i) continue;
    in_place(0).Withdraw();
    const std::vector<std::byte> kept = memory_;
    std::ranges::fill(memory_, std::byte{99});
    receiver.join();
    if (recv->code == Code::kOk) {
      ASSERT_EQ(landing_, kept);
      ASSERT_TRUE(Progress(0).ok());
      EXPECT_EQ(send->code, Code::kOk);
    } else {
      EXPECT_FALSE(recv->started);
    }
  }
}

// A late peer is not waited for anew with each slice.
TEST_F(ShmLoansTest, OneIsWaitedForAndTheRestIsCopied) {
  std::vector<const Send*> sends;
  for (int i = 0; i < kSlots; ++i) sends.push_back(Post(1));
  ASSERT_TRUE(SpinUntil([&] { return sends.front()->code == Code::kOk; }, {0}));
  EXPECT_EQ(sends.back()->code, Code::kOk) << "waited for on its own";
  for (int i = 0; i < kSlots; ++i) {
    Recv* const recv = Expect(true);
    ASSERT_TRUE(Progress(1).ok());
    ExpectData(recv, 1);
  }
}

TEST_F(ShmLoansTest, APeerThatSleptIsNotWaitedFor) {
  ASSERT_TRUE(end(1).Arm());
  const Send* const send = Post(1);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(send->code, Code::kOk) << "copied before the peer is awake";
  ASSERT_TRUE(Progress(1).ok());
  const Send* const next = Post(2);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(next->code, Code::kInProgress) << "it is awake now";
}

TEST_F(ShmLoansTest, TheShortWayTakesWhatTheSenderHasCopied) {
  ShortPath& path = *end(1).shortcuts().short_path;
  for (int number = 0; number < 5 * kSlots; ++number) {
    const Send* const send = Post(number);
    ASSERT_TRUE(SpinUntil([&] { return send->code == Code::kOk; }, {0}));
    std::ranges::fill(memory_, std::byte{0});
    ShortPath::Slice slice;
    ASSERT_TRUE(path.Peek(&slice));
    ASSERT_TRUE(path.PopInto(landing_.data()));
    EXPECT_EQ(landing_, Data(number));
  }
}

}  // namespace
}  // namespace annulus
