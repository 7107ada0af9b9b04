// Verbs links that send from registered memory: what the device reads there, what it still may read when a link ends,
// and what it knows of memory that is given back.
#include "transport/verbs/device/verbs_regions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"

namespace annulus {
namespace {

class VerbsRegionsTest : public RegisteredLinkTest {
 protected:
  void SetUp() override {
    RegisteredLinkTest::SetUp();
    Open();
    memory_ = Allocate();
    ASSERT_NE(memory_, nullptr);
  }
  void TearDown() override {
    RegisteredLinkTest::TearDown();
    Free(memory_);
  }

  void Open() {
    OpenWith([](TransportConfig*) {});
  }
  static uint64_t ReadInPlace() { return SimulatedVerbs::Counts().read_in_place; }

  // Sends a slice of rank 0 and checks what arrives.
  void SendAndCheck(const std::byte* from, uint32_t bytes) {
    const Recv* const recv = Expect();
    const Send* const send = Post(from, bytes);
    ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    EXPECT_EQ(std::memcmp(recv->data, from, bytes), 0);
    link_->end(1).Release(&recvs_.back());
  }

  std::byte* memory_ = nullptr;
};

TEST_F(VerbsRegionsTest, TheDeviceReadsRegisteredMemoryAndNothingIsCopied) {
  for (size_t i = 0; i < kBytes; ++i) memory_[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(SendsFrom(link_->end(0), memory_ + 1, kSlotBytes));
  const uint64_t before = ReadInPlace();
  SendAndCheck(memory_ + 1, kSlotBytes);
  EXPECT_EQ(ReadInPlace() - before, kSlotBytes);
  // A slice that becomes ready bit by bit is written bit by bit.
  const Recv* const recv = Expect();
  Send* const send = Post(memory_ + 100, 3000, 1000);
  ASSERT_TRUE(Drive([&] { return recv->arrived == 1000; }));
  EXPECT_EQ(send->code, Code::kInProgress);
  send->ready = 3000;
  ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
  EXPECT_EQ(std::memcmp(recv->data, memory_ + 100, 3000), 0);
  EXPECT_EQ(ReadInPlace() - before, kSlotBytes + 3000);
}

TEST_F(VerbsRegionsTest, OnlyRegisteredAndLargeMemoryIsSentInPlace) {
  const std::vector<std::byte> ordinary(kSlotBytes);
  Endpoint& end = link_->end(0);
  EXPECT_FALSE(SendsFrom(end, ordinary.data(), kSlotBytes));
  EXPECT_FALSE(SendsFrom(end, memory_, 100)) << "a small slice is copied into its message";
  EXPECT_FALSE(SendsFrom(end, memory_, kSlotBytes + 1));
  EXPECT_FALSE(SendsFrom(end, memory_ + kBytes - 1000, 1001));
  EXPECT_FALSE(SendsFrom(end, memory_ - 1000, 1001));
  EXPECT_TRUE(SendsFrom(end, memory_ + kBytes - 1000, 1000));
  Send send;
  send.data = ordinary.data();
  send.bytes = send.ready = kSlotBytes;
  EXPECT_EQ(end.PostSend(&send).code(), Code::kInvalidArgument);
  // Inside a slot is no registered memory either.
  std::byte* slot = nullptr;
  ASSERT_TRUE(end.AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  send.data = slot + 64;
  send.bytes = send.ready = 1000;
  EXPECT_EQ(end.PostSend(&send).code(), Code::kInvalidArgument);
}

TEST_F(VerbsRegionsTest, TheDeviceKnowsARegionOnceAndForgetsItBeforeItGoes) {
  const uint64_t before = SimulatedVerbs::Counts().objects;
  SendAndCheck(memory_, 2000);
  SendAndCheck(memory_ + kSlotBytes, 2000);
  EXPECT_EQ(SimulatedVerbs::Counts().objects, before + 1);
  std::byte* const other = Allocate();
  EXPECT_EQ(SimulatedVerbs::Counts().objects, before + 1) << "nothing was sent from it yet";
  SendAndCheck(other, 2000);
  EXPECT_EQ(SimulatedVerbs::Counts().objects, before + 2);
  Free(other);
  EXPECT_EQ(SimulatedVerbs::Counts().objects, before + 1);
  SendAndCheck(memory_, 2000);
  // Memory at the same address is another region.
  std::vector<std::byte> content(kBytes, std::byte{3});
  for (int i = 0; i < 3; ++i) {
    std::byte* const again = Allocate();
    std::copy(content.begin(), content.end(), again);
    SendAndCheck(again, 2000);
    Free(again);
  }
  EXPECT_EQ(SimulatedVerbs::Counts().objects, before + 1);
}

TEST_F(VerbsRegionsTest, WhatTheDeviceRefusesGoesThroughSlots) {
  SimulatedVerbs::SetMachine({.most_registered_bytes = 1});
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(SendsFrom(link_->end(0), memory_, 2000));
  std::byte* const other = Allocate();
  EXPECT_FALSE(SendsFrom(link_->end(0), other, 2000));
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find("some registered memory goes through slots");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("some registered memory", told + 1), std::string::npos) << "told twice: " << log;
  Free(other);
}

// None makes room for another one of which so little was copied (verbs_cache_test.cc).
TEST_F(VerbsRegionsTest, ManyRegionsAreKnownUpToABound) {
  std::memset(memory_, 0x5a, kBytes);
  const Recv* const recv = Expect();
  const Send* const send = Post(memory_, kSlotBytes);
  std::vector<std::byte*> regions;
  for (size_t i = 0; i < VerbsRegions::kMost + 3; ++i) regions.push_back(Allocate());
  EXPECT_TRUE(SendsFrom(link_->end(0), memory_, 2000)) << "wherever the others lie";
  size_t known = 0;
  for (std::byte* const region : regions) known += SendsFrom(link_->end(0), region, 2000) ? 1 : 0;
  EXPECT_EQ(known, VerbsRegions::kMost - 1);
  ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
  EXPECT_EQ(std::memcmp(recv->data, memory_, kSlotBytes), 0);
  link_->end(1).Release(&recvs_.back());
  // What is given back makes room.
  EXPECT_FALSE(SendsFrom(link_->end(0), regions.back(), 2000));
  Free(regions.front());
  EXPECT_TRUE(SendsFrom(link_->end(0), regions.back(), 2000));
  for (size_t i = 1; i < regions.size(); ++i) Free(regions[i]);
}

// What the peer will never receive fails also while messages of its own wait for receives, which are delivered after.
TEST_F(VerbsRegionsTest, SendsToAPeerThatLeftFailBeforeItsMessagesAreReceived) {
  std::array<Send, 2> theirs;
  for (Send& send : theirs) {
    std::byte* slot = nullptr;
    ASSERT_TRUE(link_->end(1).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    std::memset(slot, 0x77, kSlotBytes);
    send.data = slot;
    send.bytes = send.ready = kSlotBytes;
    ASSERT_TRUE(link_->end(1).PostSend(&send).ok());
  }
  // As many as the peer has slots arrive there; the others wait.
  for (size_t i = 0; i < kSlots + 2; ++i) Post(memory_ + i * kSlotBytes, kSlotBytes);
  ASSERT_TRUE(Drive([&] { return theirs[1].code == Code::kOk && sends_[kSlots - 1].code == Code::kOk; }));
  CloseWholly(link_->end(1));
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (bool moved = false; sends_.back().code == Code::kInProgress && Now() < deadline;) {
    ASSERT_TRUE(link_->end(0).Progress(&moved).ok());
  }
  EXPECT_EQ(sends_.back().code, Code::kPeerLost);
  std::array<Recv, 2> recvs;
  for (Recv& recv : recvs) {
    recv.capacity = kSlotBytes;
    ASSERT_TRUE(link_->end(0).PostRecv(&recv).ok());
  }
  Status status;
  for (bool moved = false; status.ok() && Now() < deadline;) status = link_->end(0).Progress(&moved);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  for (const Recv& recv : recvs) {
    ASSERT_EQ(recv.code, Code::kOk);
    EXPECT_TRUE(IsAll(recv.data, recv.bytes, std::byte{0x77}));
  }
}

// Whoever gets a send back changes the memory. The peer must not take that for the slice, however far it had come.
TEST_F(VerbsRegionsTest, MemoryThatIsGivenBackIsNotSentAnyMore) {
  for (uint64_t seed = 1; seed <= Rounds(200, 20'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    Open();
    sends_.clear();
    recvs_.clear();
    std::memset(memory_, 0x5a, kBytes);
    for (int i = 0; i < kSlots; ++i) Expect();
    for (size_t i = 0; i < kSlots; ++i) Post(memory_ + i * kSlotBytes, kSlotBytes);
    for (uint64_t i = random() % 6; i > 0; --i) {
      bool moved = false;
      ASSERT_TRUE(link_->end(0).Progress(&moved).ok());
      ASSERT_TRUE(random() % 2 == 0 || link_->end(1).Progress(&moved).ok());
    }
    // Rank 0 gives up by itself, because its peer does, or because a request fails.
    const uint64_t way = random() % 3;
    bool closed = false;
    if (way == 0) closed = link_->end(0).Close();
    if (way == 1) CloseWholly(link_->end(1));
    if (way == 2) SimulatedVerbs::FailPairs();
    const Deadline deadline = DeadlineAfter(kContractPatience);
    Status status[2];
    for (bool scribbled = false; Now() < deadline && (!scribbled || status[1].ok());) {
      bool moved = false;
      for (const int side : {0, 1}) status[side] = link_->end(side).Progress(&moved);
      if (!scribbled && sends_.back().code != Code::kInProgress) {
        std::memset(memory_, 0xee, kBytes);
        scribbled = true;
      }
      if (way == 0 && !closed) closed = link_->end(0).Close();
      if (!moved) link_->Pass();
    }
    EXPECT_FALSE(status[1].ok());
    for (const Recv& recv : recvs_) {
      if (recv.code != Code::kOk) continue;
      EXPECT_TRUE(IsAll(recv.data, recv.bytes, std::byte{0x5a}));
    }
    if (HasFailure()) break;
  }
  SimulatedVerbs::Seed(1);
}

}  // namespace
}  // namespace annulus
