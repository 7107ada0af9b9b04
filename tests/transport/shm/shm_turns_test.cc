// Slices that are put in turn into a slot begin behind each other, and arrive as they were.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/transport/shm/shm_pair.h"
#include "transport/shm/shm_mapping.h"
#include "transport/shm/shm_receiver.h"
#include "transport/shm/shm_regions.h"
#include "transport/shm/shm_sender.h"
#include "transport/transport.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 64 * 1024;

class ShmTurnsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ShmMapping::Create(1, kSlotBytes, &mapping_).ok());
    sender_ = std::make_unique<ShmSender>(mapping_->direction(0), &own_regions_);
    receiver_ = std::make_unique<ShmReceiver>(mapping_->direction(0), &peer_regions_, [] { return false; });
  }

  // Sends a slice through the one slot. Returns where it lay in there, and was read.
  size_t Pass(uint32_t bytes, ShmPlacing placing) {
    std::byte* const slot = sender_->Acquire(bytes, placing, &fault_);
    EXPECT_NE(slot, nullptr);
    if (slot == nullptr) return SIZE_MAX;
    std::fill_n(slot, bytes, static_cast<std::byte>(++passes_));
    const std::byte* const read = Send(slot, bytes);
    EXPECT_TRUE(read == slot || bytes <= ShmDescriptor::kPayloadBytes);
    return read == nullptr ? SIZE_MAX : static_cast<size_t>(read - mapping_->direction(0).slots);
  }

  // The same for memory that is lent, and is copied into the slot since the peer does not come.
  size_t PassLoan(uint32_t bytes) {
    const std::vector<std::byte> data(bytes, static_cast<std::byte>(++passes_));
    EXPECT_TRUE(sender_->Lends(data.data(), bytes));
    const std::byte* const read = Send(data.data(), bytes);
    return read == nullptr ? SIZE_MAX : static_cast<size_t>(read - mapping_->direction(0).slots);
  }

  // Returns where it was read; null on failure.
  const std::byte* Send(const std::byte* data, uint32_t bytes) {
    annulus::Send send;
    send.data = data;
    send.bytes = send.ready = bytes;
    EXPECT_TRUE(sender_->Post(&send, &fault_).ok());
    EXPECT_TRUE(sender_->Publish(&fault_));
    sender_->HurryLoans();
    bool copied = false;
    EXPECT_TRUE(sender_->Complete(&copied, &fault_));
    Recv recv;
    recv.capacity = kSlotBytes;
    bool freed = false;
    EXPECT_TRUE(receiver_->Post(&recv));
    EXPECT_TRUE(receiver_->Advance(&freed, &fault_)) << fault_.field;
    if (recv.code != Code::kOk) return nullptr;
    const std::byte value = static_cast<std::byte>(passes_);
    EXPECT_TRUE(std::all_of(recv.data, recv.data + bytes, [value](std::byte each) { return each == value; }));
    receiver_->Release(&recv);
    return recv.data;
  }

  std::unique_ptr<ShmMapping> mapping_;
  ShmOwnRegions own_regions_{nullptr, [](const ShmNotice&, int) { return true; }};
  ShmPeerRegions peer_regions_;
  std::unique_ptr<ShmSender> sender_;
  std::unique_ptr<ShmReceiver> receiver_;
  ShmFault fault_;
  int passes_ = 0;
};

TEST_F(ShmTurnsTest, SlicesBeginBehindEachOtherUntilThereIsNoRoom) {
  constexpr uint32_t kBytes = 20'000;
  constexpr size_t kStep = 20'096;  // Up to the next pair of lines.
  for (int round = 0; round < 3; ++round) {
    for (size_t turn = 0; turn < 3; ++turn) EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), turn * kStep);
  }
  EXPECT_EQ(Pass(kSlotBytes - 1, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kSlotBytes / 2, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kSlotBytes / 2, ShmPlacing::kInTurn), kSlotBytes / 2) << "it fits exactly";
  EXPECT_EQ(Pass(kSlotBytes, ShmPlacing::kInTurn), 0u);
}

TEST_F(ShmTurnsTest, SmallSlicesAndThoseOfOtherPeersBeginWhereTheSlotDoes) {
  constexpr uint32_t kSmall = ShmSender::kLeastInTurn - 1;
  for (const uint32_t bytes : {kSmall, kSmall, kSmall + 1}) {
    EXPECT_EQ(Pass(bytes, ShmPlacing::kAtBeginning), 0u);
  }
  EXPECT_EQ(Pass(kSmall, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kSmall + 1, ShmPlacing::kInTurn), ShmSender::kLeastInTurn);
  EXPECT_EQ(Pass(kSmall, ShmPlacing::kInTurn), 0u);
}

TEST_F(ShmTurnsTest, NoMoreOfASlotIsUsedInTurnThanAllowed) {
  constexpr uint32_t kBytes = 8 * 1024;
  sender_->LimitTurns(3 * kBytes - 1);
  for (int round = 0; round < 3; ++round) {
    for (const size_t place : {0u, kBytes}) EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), place);
  }
  EXPECT_EQ(Pass(4 * kBytes, ShmPlacing::kInTurn), 0u) << "larger than that";
}

TEST_F(ShmTurnsTest, ASliceLargerThanItsPlaceIsRefused) {
  EXPECT_EQ(Pass(kSlotBytes / 2, ShmPlacing::kInTurn), 0u);
  std::byte* const slot = sender_->Acquire(kSlotBytes / 2, ShmPlacing::kInTurn, &fault_);
  ASSERT_EQ(slot, mapping_->direction(0).slots + kSlotBytes / 2);
  annulus::Send send;
  send.data = slot;
  send.bytes = send.ready = kSlotBytes / 2 + 1;
  EXPECT_EQ(sender_->Post(&send, &fault_).code(), Code::kInvalidArgument);
  send.bytes = send.ready = kSlotBytes / 2;
  EXPECT_TRUE(sender_->Post(&send, &fault_).ok());
}

TEST_F(ShmTurnsTest, WhatIsLentOrTravelsInADescriptorLeavesNoPlaceBehind) {
  constexpr uint32_t kBytes = 16 * 1024;
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), kBytes);
  EXPECT_EQ(PassLoan(kBytes), 0u);
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), kBytes);
  EXPECT_NE(Pass(100, ShmPlacing::kInTurn), SIZE_MAX);
  EXPECT_NE(Pass(kBytes, ShmPlacing::kInTurn), SIZE_MAX);
}

// What was written elsewhere in the slot tells nothing.
TEST_F(ShmTurnsTest, OnlyThePlaceThatThePeerHasReadIsTimed) {
  constexpr uint32_t kBytes = 4096;
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), 0u);
  EXPECT_EQ(Pass(kBytes, ShmPlacing::kInTurn), kBytes);
  std::byte* const slot = sender_->Acquire(kBytes, ShmPlacing::kAtBeginning, &fault_);
  ASSERT_NE(slot, nullptr);
  EXPECT_EQ(sender_->TimeRewrite(slot, kBytes), 0);
}

// Short slices, and posted ones, between ends on one processor, which is as near as can be.
class ShmTurnsOfPairTest : public ::testing::TestWithParam<bool> {};

TEST_P(ShmTurnsOfPairTest, ANearPeerGetsItsSlicesInTurn) {
  constexpr uint32_t kBytes = 8 * 1024;
  constexpr int kSlots = 2;
  constexpr int kMost = 2000;
  ShmPair pair;
  ASSERT_TRUE(pair.Make({.slot_bytes = kSlotBytes, .slots = kSlots}));
  std::vector<std::byte> data(kBytes);
  std::set<const std::byte*> places;
  int passes = 0;
  for (; passes < kMost && places.size() < kSlots * kSlotBytes / kBytes; ++passes) {
    std::ranges::fill(data, static_cast<std::byte>(passes));
    ShortPath& to = *pair.end(0).shortcuts().short_path;
    ShortPath& from = *pair.end(1).shortcuts().short_path;
    Send send;
    if (GetParam()) {
      ASSERT_TRUE(to.SendCopy(Tag(), data.data(), kBytes).ok());
    } else {
      std::byte* slot = nullptr;
      ASSERT_TRUE(pair.end(0).AcquireSlot(kBytes, &slot).ok());
      std::ranges::copy(data, slot);
      send.data = slot;
      send.bytes = send.ready = kBytes;
      ASSERT_TRUE(pair.end(0).PostSend(&send).ok());
      bool moved = false;
      ASSERT_TRUE(pair.end(0).Progress(&moved).ok());
      ASSERT_EQ(send.code, Code::kOk);
    }
    ShortPath::Slice slice;
    ASSERT_TRUE(from.Peek(&slice));
    ASSERT_EQ(slice.bytes, kBytes);
    ASSERT_TRUE(std::equal(data.begin(), data.end(), slice.data));
    places.insert(slice.data);
    from.Pop();
  }
  if (passes == kMost) GTEST_SKIP() << "reading the clock takes too long here to find any peer near";
  EXPECT_GT(passes, kSlots * static_cast<int>(kSlotBytes / kBytes)) << "before it was known to be near";
}

INSTANTIATE_TEST_SUITE_P(Ways, ShmTurnsOfPairTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) { return info.param ? "Short" : "Posted"; });

}  // namespace
}  // namespace annulus
