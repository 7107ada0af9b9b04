// More registered memory than the devices of verbs links know at a time: which regions make room for others, and which
// do not because requests name them. The provider fails a request that names a region which has made room.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {
namespace {

constexpr size_t kMost = VerbsRegions::kMost;

uint64_t Registrations() { return SimulatedVerbs::Counts().registrations; }
uint64_t Objects() { return SimulatedVerbs::Counts().objects; }

class VerbsCacheTest : public ReadLinkTest {
 protected:
  static constexpr size_t kRegionBytes = 2 * kSlotBytes;

  void TearDown() override {
    ReadLinkTest::TearDown();
    for (std::byte* const region : regions_) Free(region);
  }

  void MakeRegions(size_t count) {
    while (regions_.size() < count) {
      void* memory = nullptr;
      ASSERT_TRUE(TestRegistry().Allocate(kRegionBytes, &memory).ok());
      std::memset(memory, ContentOf(regions_.size()), kRegionBytes);
      regions_.push_back(static_cast<std::byte*>(memory));
    }
  }
  std::byte* region(size_t index) { return regions_[index]; }
  static int ContentOf(size_t region) { return static_cast<int>(region % 251) + 1; }

  bool Knows(int side, const std::byte* region) { return SendsFrom(end(side), region, kSlotBytes); }
  // Asks for so much of a region that another one makes room for it, if it can.
  bool Insists(int side, const std::byte* region, size_t bytes = kRegionBytes) {
    bool known = Knows(side, region);
    for (size_t copied = kSlotBytes; copied <= bytes && !known; copied += kSlotBytes) known = Knows(side, region);
    return known;
  }
  // Asks an end for one region more than its device can know, each until it knows it.
  void AskForAll(int side) {
    MakeRegions(kMost + 1);
    for (std::byte* const region : regions_) (void)Insists(side, region);
  }
  void Finish(const Send& send, Recv* recv) {
    ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send.code == Code::kOk; }));
    EXPECT_EQ(std::memcmp(recv->data, send.data, send.bytes), 0);
    if (recv->data != recv->landing) end(1).Release(recv);
  }
  void SendAndCheck(const std::byte* data) {
    Recv* const recv = Expect();
    Finish(*Post(data, kSlotBytes), recv);
  }

 private:
  std::vector<std::byte*> regions_;
};

TEST_F(VerbsCacheTest, TheLeastRecentlyUsedRegionMakesRoom) {
  MakeRegions(kMost + 2);
  for (size_t i = 0; i < kMost; ++i) ASSERT_TRUE(Knows(0, region(i)));
  EXPECT_TRUE(Knows(0, region(0)));
  const uint64_t before = Registrations();
  const uint64_t objects = Objects();
  EXPECT_FALSE(Knows(0, region(kMost))) << "before as much as it has was copied";
  EXPECT_TRUE(Insists(0, region(kMost)));
  EXPECT_EQ(Registrations(), before + 1);
  EXPECT_EQ(Objects(), objects) << "another one made room";
  EXPECT_TRUE(Knows(0, region(0))) << "it was used since";
  EXPECT_EQ(Registrations(), before + 1);
  EXPECT_FALSE(Knows(0, region(1)));
  for (size_t i = 2; i < kMost; ++i) ASSERT_TRUE(Knows(0, region(i)));
  EXPECT_EQ(Registrations(), before + 1);
  SendAndCheck(region(kMost));
  SendAndCheck(region(0));
}

// An end that waits for a slot asks again and again, and copies nothing meanwhile.
TEST_F(VerbsCacheTest, OnlyWhatIsCopiedCounts) {
  MakeRegions(kMost + 1);
  for (size_t i = 0; i < kMost; ++i) ASSERT_TRUE(Knows(0, region(i)));
  std::vector<std::byte*> slots(kSlots);
  for (std::byte*& slot : slots) ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Knows(0, region(kMost)));
  for (std::byte* const slot : slots) {
    std::memset(slot, 1, kSlotBytes);
    SendAndCheck(slot);
  }
  EXPECT_FALSE(Knows(0, region(kMost)));
  EXPECT_FALSE(Knows(0, region(kMost)));
  EXPECT_TRUE(Knows(0, region(kMost)));
}

TEST_F(VerbsCacheTest, RegionsThatSendsNameDoNotMakeRoom) {
  MakeRegions(kMost + 1);
  for (const bool reads : {true, false}) {
    Open(reads ? kLeast : 0, reads ? kLeast : 0);
    const size_t begin = sends_.size();
    for (size_t i = 0; i < kMost; ++i) {
      ASSERT_TRUE(Knows(0, region(i)));
      Post(region(i), kSlotBytes);
    }
    EXPECT_FALSE(Insists(0, region(kMost)));
    Send late;
    late.data = region(kMost);
    late.bytes = late.ready = kSlotBytes;
    EXPECT_TRUE(end(0).PostSend(&late).would_block());
    for (size_t i = 0; i < kMost; ++i) {
      Recv* const recv = Expect();
      Finish(sends_[begin + i], recv);
      ASSERT_FALSE(HasFailure()) << i;
    }
    EXPECT_TRUE(Knows(0, region(kMost))) << "all are free to go";
    SendAndCheck(region(kMost));
  }
}

// An engine chooses where slices are sent from, and posts them later.
TEST_F(VerbsCacheTest, WhatWillBeSentFromDoesNotMakeRoom) {
  MakeRegions(3);
  SimulatedVerbs::SetMachine({.most_registered_bytes = SimulatedVerbs::Counts().registered_bytes + 2 * kRegionBytes});
  ASSERT_TRUE(Knows(0, region(0)));
  ASSERT_TRUE(Knows(0, region(1)));
  const uint64_t before = Registrations();
  EXPECT_FALSE(Insists(0, region(2)));
  SendAndCheck(region(0));
  EXPECT_EQ(Registrations(), before);
  EXPECT_TRUE(Insists(0, region(2))) << "it was sent";
  SendAndCheck(region(1));
  SendAndCheck(region(2));
  EXPECT_EQ(Registrations(), before + 1);
}

// The device has done its part, but the peer has not read it.
TEST_F(VerbsCacheTest, ARegionThatThePeerHasYetToReadDoesNotMakeRoom) {
  const Send* const send = Post(from(), kSlotBytes);
  DriveUntilQuiet();
  ASSERT_EQ(send->code, Code::kInProgress);
  AskForAll(0);
  AskForAll(0);
  Recv* const recv = Expect();
  Finish(*send, recv);
  EXPECT_EQ(recv->bytes, kSlotBytes);
}

TEST_F(VerbsCacheTest, ALandingThatIsBeingReadIntoDoesNotMakeRoom) {
  SimulatedVerbs::SetMachine({.slow_device = 0});
  Recv* const recv = Expect(to());
  const Send* const send = Post(from(), kSlotBytes);
  SimulatedVerbs::Allow(1);
  DriveUntilQuiet();
  ASSERT_EQ(SimulatedVerbs::Counts().read_landed, 0u);
  AskForAll(1);
  AskForAll(1);
  SimulatedVerbs::SetMachine({});
  Finish(*send, recv);
  EXPECT_EQ(recv->data, to());
}

// What SendsFrom has said holds until the send is posted, whatever needs room meanwhile.
TEST_F(VerbsCacheTest, ARegionMakesNoRoomBetweenTheAnswerAndTheSend) {
  MakeRegions(kMost + 1);
  for (size_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(Knows(0, region(i)));
    Post(region(i), kSlotBytes);
  }
  EXPECT_FALSE(Insists(0, region(kMost)));
  Recv* const first = Expect();
  Finish(sends_[0], first);
  // All others are in use. A slice that comes would land in the last one.
  EXPECT_TRUE(Knows(0, region(0)));
  Recv recv;
  recv.landing = region(kMost);
  recv.capacity = kSlotBytes;
  ASSERT_TRUE(end(0).PostRecv(&recv).ok());
  Send send;
  send.data = from();
  send.bytes = send.ready = kSlotBytes;
  ASSERT_TRUE(end(1).PostSend(&send).ok());
  ASSERT_TRUE(Drive([&] { return recv.code == Code::kOk && send.code == Code::kOk; }));
  EXPECT_EQ(std::memcmp(recv.data, from(), kSlotBytes), 0);
  EXPECT_NE(recv.data, recv.landing);
  end(0).Release(&recv);
  Post(region(0), kSlotBytes);
  for (size_t i = 1; i <= kMost && !HasFailure(); ++i) {
    Recv* const next = Expect();
    Finish(sends_[i], next);
  }
}

TEST_F(VerbsCacheTest, RegionsMakeRoomWhereMemoryIsShort) {
  ASSERT_TRUE(Knows(0, from()));
  SimulatedVerbs::SetMachine({.most_registered_bytes = SimulatedVerbs::Counts().registered_bytes + kBytes / 2});
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(Knows(0, to()));
  const Send* const send = Post(from(), kSlotBytes);
  EXPECT_FALSE(Insists(0, to(), kBytes)) << "the other one is in use";
  Recv* const recv = Expect();
  Finish(*send, recv);
  EXPECT_FALSE(Knows(0, to()));
  EXPECT_TRUE(Insists(0, to(), kBytes));
  SendAndCheck(to());
  EXPECT_FALSE(Knows(0, from()));
  EXPECT_TRUE(Insists(0, from(), kBytes)) << "they take turns";
  SendAndCheck(from());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("goes through slots"), std::string::npos) << "it was no refusal for good: " << log;
}

// Slices of more regions than there is room for, those of others from slots.
TEST_F(VerbsCacheTest, TrafficOfManyRegionsIsRight) {
  struct Slice {
    Send send;
    Recv recv;
    int content = 0;
  };
  constexpr size_t kRegions = kMost + 64;
  MakeRegions(kRegions);
  for (uint64_t seed = 1; seed <= Rounds(kSanitized ? 2 : 4, 400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    Open(seed % 2 == 0 ? kLeast : 0);
    const SimulatedCounts before = SimulatedVerbs::Counts();
    std::deque<Slice> slices;
    const auto post = [&] {
      const size_t index = random() % kRegions;
      const std::byte* data = region(index) + random() % (kRegionBytes - kSlotBytes);
      const auto bytes = static_cast<uint32_t>(kSlotBytes - random() % 2000);
      if (!SendsFrom(end(0), data, bytes)) {
        std::byte* slot = nullptr;
        if (end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).would_block()) return false;
        std::memcpy(slot, data, bytes);
        data = slot;
      }
      Slice& slice = slices.emplace_back();
      slice.content = ContentOf(index);
      slice.send.data = data;
      slice.send.bytes = slice.send.ready = bytes;
      slice.recv.capacity = kSlotBytes;
      EXPECT_TRUE(end(1).PostRecv(&slice.recv).ok());
      EXPECT_TRUE(end(0).PostSend(&slice.send).ok());
      return true;
    };
    for (int left = kSanitized ? 1000 : 4000; left > 0 || !slices.empty();) {
      if (left > 0 && slices.size() < kSlots && post()) --left;
      bool moved = false;
      for (const int side : {0, 1}) ASSERT_TRUE(end(side).Progress(&moved).ok());
      while (!slices.empty() && slices[0].send.code == Code::kOk && slices[0].recv.code == Code::kOk) {
        ASSERT_TRUE(IsAll(slices[0].recv.data, slices[0].recv.bytes, static_cast<std::byte>(slices[0].content)));
        end(1).Release(&slices[0].recv);
        slices.pop_front();
      }
      if (!moved) link_->Pass();
    }
    EXPECT_GT(Registrations() - before.registrations, kMost) << "no region made room";
    EXPECT_LE(Objects(), before.objects + kMost);
  }
  SimulatedVerbs::Seed(1);
}

}  // namespace
}  // namespace annulus
