// Shared memory: the short way of tiny slices, beside posted ones.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr uint32_t kSlotBytes = 4096;
constexpr int kSlots = 4;
constexpr uint32_t kInline = ShmDescriptor::kPayloadBytes;

Tag TagOf(uint64_t number) { return {{number, ~number, 1, 2}}; }

std::vector<std::byte> Data(uint64_t number, uint32_t bytes) {
  std::vector<std::byte> data(bytes);
  for (uint32_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(number * 7 + i);
  return data;
}

class ShmShortTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots})); }

  Endpoint& end(int side) { return pair_.end(side); }
  ShortPath& path(int side) { return *end(side).shortcuts().short_path; }
  Status Progress(int side) {
    bool moved = false;
    return end(side).Progress(&moved);
  }
  Status SendShort(uint64_t number, uint32_t bytes) {
    return path(0).SendCopy(TagOf(number), Data(number, bytes).data(), bytes);
  }
  void ExpectShort(uint64_t number, uint32_t bytes) {
    ShortPath::Slice slice;
    ASSERT_TRUE(path(1).Peek(&slice)) << number;
    EXPECT_EQ(slice.tag, TagOf(number));
    ASSERT_EQ(slice.bytes, bytes);
    ASSERT_NE(slice.data, nullptr);
    const std::vector<std::byte> expected = Data(number, bytes);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), slice.data));
    path(1).Pop();
  }

  ShmPair pair_;
};

// Tens of kilobytes, in every way in which slots are written, and of every length to a vector's end.
TEST_F(ShmShortTest, LongOnesArriveHoweverSlotsAreWritten) {
  constexpr uint32_t kLong = 40000;
  for (const SlotStores stores : {SlotStores::kAuto, SlotStores::kPlain, SlotStores::kStreaming}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = 65536, .slots = kSlots}, stores));
    for (uint64_t number = 0; number < 64; ++number) {
      const uint32_t bytes = kLong + static_cast<uint32_t>(number);
      ASSERT_TRUE(SendShort(number, bytes).ok()) << number;
      ExpectShort(number, bytes);
    }
    // Four are on their way, and a fifth has to wait.
    for (uint64_t number = 0; number < kSlots; ++number) ASSERT_TRUE(SendShort(number, kLong).ok());
    EXPECT_TRUE(SendShort(kSlots, kLong).would_block());
    ExpectShort(0, kLong);
    EXPECT_TRUE(SendShort(kSlots, kLong).ok());
    for (uint64_t number = 1; number <= kSlots; ++number) ExpectShort(number, kLong);
  }
}

TEST_F(ShmShortTest, EverySizeArrivesAndSlotsComeBack) {
  ASSERT_EQ(end(0).limits().short_bytes, kSlotBytes);
  uint64_t number = 0;
  for (int round = 0; round < 200; ++round) {
    for (const uint32_t bytes : {0u, 1u, 8u, kInline, kInline + 1, kSlotBytes}) {
      ASSERT_TRUE(SendShort(++number, bytes).ok()) << number;
      ExpectShort(number, bytes);
    }
  }
  ShortPath::Slice none;
  EXPECT_FALSE(path(1).Peek(&none));
}

TEST_F(ShmShortTest, WithoutRoomItBlocksAndRecovers) {
  uint64_t sent = 0;
  while (SendShort(sent + 1, 1000).ok()) ++sent;
  EXPECT_EQ(sent, static_cast<uint64_t>(kSlots));
  EXPECT_TRUE(SendShort(sent + 1, 1000).would_block());
  for (uint64_t number = 1; number <= sent; ++number) ExpectShort(number, 1000);
  EXPECT_TRUE(SendShort(++sent, 1000).ok());
  ExpectShort(sent, 1000);
  const uint64_t before = sent;
  while (SendShort(sent + 1, 8).ok()) ++sent;
  EXPECT_GT(sent, before + 10);
  for (uint64_t number = before + 1; number <= sent; ++number) ExpectShort(number, 8);
  EXPECT_TRUE(SendShort(++sent, 8).ok());
}

// Who has tried the short way and then posted must be able to sleep: it waits for what it posted.
TEST_F(ShmShortTest, APostAfterAFailedTryWaitsOnItsOwn) {
  std::byte* slot = nullptr;
  uint64_t sent = 0;
  while (SendShort(sent + 1, 1000).ok()) ++sent;
  for (uint64_t number = 1; number <= sent; ++number) ExpectShort(number, 1000);
  Send send;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  std::memcpy(slot, Data(9, 8).data(), 8);
  send.tag = TagOf(9);
  send.data = slot;
  send.bytes = send.ready = 8;
  ASSERT_TRUE(end(0).PostSend(&send).ok());
  while (send.code == Code::kInProgress) ASSERT_TRUE(Progress(0).ok());
  EXPECT_TRUE(end(0).Arm()) << "there is room, but nobody wants it any more";

  ExpectShort(9, 8);
  ShortPath::Slice none;
  EXPECT_FALSE(path(1).Peek(&none));
  Recv recv;
  recv.capacity = kSlotBytes;
  ASSERT_TRUE(end(1).PostRecv(&recv).ok());
  ASSERT_TRUE(SendShort(10, 8).ok());
  ASSERT_TRUE(SendShort(11, 8).ok());
  ASSERT_TRUE(Progress(0).ok());
  while (recv.code == Code::kInProgress) ASSERT_TRUE(Progress(1).ok());
  EXPECT_TRUE(end(1).Arm()) << "another slice is there, but nobody waits for it";
  end(1).Release(&recv);
}

TEST_F(ShmShortTest, PostedAndShortSlicesKeepOneOrder) {
  Send send;
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  std::memcpy(slot, Data(1, 500).data(), 500);
  send.tag = TagOf(1);
  send.data = slot;
  send.bytes = 500;
  send.ready = 100;
  ASSERT_TRUE(end(0).PostSend(&send).ok());
  EXPECT_TRUE(SendShort(2, 8).would_block()) << "overtook a slice that is not ready";
  send.ready = 500;
  ASSERT_TRUE(Progress(0).ok());
  ASSERT_TRUE(SendShort(2, 8).ok());
  ExpectShort(1, 500);  // A posted slice may be taken the short way,
  Recv recv;
  recv.capacity = kSlotBytes;
  ASSERT_TRUE(end(1).PostRecv(&recv).ok());
  ShortPath::Slice slice;
  EXPECT_FALSE(path(1).Peek(&slice)) << "taken from under a receive";
  ASSERT_TRUE(Progress(1).ok());  // and a short one by a receive.
  ASSERT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(recv.tag, TagOf(2));
  end(1).Release(&recv);
}

TEST_F(ShmShortTest, BrokenDescriptorsBreakTheLinkAndAreNamed) {
  const auto expect = [&](const std::string& field, const std::function<void(ShmDescriptor*)>& spoil,
                          uint32_t bytes = 8) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}));
    ASSERT_TRUE(SendShort(1, bytes).ok());
    spoil(&pair_.mapping().direction(0).ring[0]);
    ShortPath::Slice slice;
    EXPECT_FALSE(path(1).Peek(&slice));
    const Status status = Progress(1);
    EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
    EXPECT_NE(status.message().find("'" + field + "'"), std::string::npos) << status.ToString();
    EXPECT_FALSE(path(1).Peek(&slice));
  };
  expect("bytes", [](ShmDescriptor* slice) { slice->bytes = kInline + 1; });
  expect("slot", [](ShmDescriptor* slice) { slice->slot = kSlots; });
  expect("slot", [](ShmDescriptor* slice) { slice->slot = kShmInPlace | kSlots; });
  expect("ticket", [](ShmDescriptor* slice) { slice->ticket = 9; });
  const auto misplace = [](ShmDescriptor* slice) {
    const ShmBegin begin = kSlotBytes;
    std::memcpy(slice->payload, &begin, sizeof(begin));
  };
  expect("beginning in a slot", misplace, 1000);
}

TEST_F(ShmShortTest, DataInPlaceIsSeenButNotTakenTheShortWay) {
  ASSERT_TRUE(SendShort(1, 8).ok());
  pair_.mapping().direction(0).ring[0].slot = kShmInPlace | 1;
  ShortPath::Slice slice;
  ASSERT_TRUE(path(1).Peek(&slice));
  EXPECT_EQ(slice.tag, TagOf(1));
  EXPECT_EQ(slice.data, nullptr);
}

TEST_F(ShmShortTest, AClosedLinkTakesNothingMore) {
  ASSERT_TRUE(SendShort(1, 8).ok());
  end(1).Close();
  ShortPath::Slice slice;
  EXPECT_FALSE(path(1).Peek(&slice));
  end(0).Close();
  EXPECT_EQ(SendShort(2, 8).code(), Code::kAborted);
}

// Plays one side of a ping-pong that sleeps whenever it can; returns the rounds that it finished.
int Play(Endpoint* end, Reactor* reactor, int rounds, bool begins) {
  ShortPath* const path = end->shortcuts().short_path;
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (int round = 0; round < rounds; ++round) {
    const uint32_t bytes = round % 3 == 0 ? 8 : kInline + 100;
    bool sent = false;
    bool received = false;
    while (!(sent && received)) {
      if (Now() > deadline) return round;
      ShortPath::Slice slice;
      const bool had_received = received;
      if (!sent && (begins || received)) sent = path->SendCopy(TagOf(round), Data(round, bytes).data(), bytes).ok();
      if (!received && path->Peek(&slice)) {
        if (slice.tag != TagOf(round) || std::memcmp(slice.data, Data(round, bytes).data(), bytes) != 0) return -1;
        path->Pop();
        received = true;
      }
      path->Flush();
      bool moved = false;
      if (!end->Progress(&moved).ok()) return -2;
      if (received == had_received && !(sent && received) && !moved && end->Arm()) reactor->WaitUntil(deadline);
    }
  }
  path->Flush();
  return rounds;
}

TEST_F(ShmShortTest, TwoSleepersPlayPingPong) {
  constexpr int kRounds = 3000;
  int finished[2] = {};
  std::thread other([&] { finished[1] = Play(&end(1), pair_.reactor(1), kRounds, false); });
  finished[0] = Play(&end(0), pair_.reactor(0), kRounds, true);
  other.join();
  EXPECT_EQ(finished[0], kRounds);
  EXPECT_EQ(finished[1], kRounds);
}

// Streams without looking at the other side, until there is no room; sleeps then.
TEST_F(ShmShortTest, ASenderWithoutRoomIsWoken) {
  constexpr int kSlices = 5000;
  bool failed = false;
  std::thread receiver([&] {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    for (int i = 0; i < kSlices && !failed;) {
      ShortPath::Slice slice;
      bool moved = false;
      failed = Now() > deadline || !end(1).Progress(&moved).ok();
      if (path(1).Peek(&slice)) {
        failed |= slice.tag != TagOf(i++);
        path(1).Pop();
        path(1).Flush();
      } else if (end(1).Arm()) {
        pair_.reactor(1)->WaitUntil(deadline);
      }
    }
  });
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (int i = 0; i < kSlices && Now() < deadline;) {
    const Status status = SendShort(i, i % 2 == 0 ? 16 : 600);
    bool moved = false;
    ASSERT_TRUE(status.ok() || status.would_block()) << status.ToString();
    ASSERT_TRUE(end(0).Progress(&moved).ok());
    if (status.ok()) {
      ++i;
    } else if (end(0).Arm()) {
      pair_.reactor(0)->WaitUntil(deadline);
    }
  }
  path(0).Flush();
  receiver.join();
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace annulus
