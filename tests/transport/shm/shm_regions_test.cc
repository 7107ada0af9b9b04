// Shared memory: slices that the peer reads where they lie, in registered memory.
#include "transport/shm/shm_regions.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>

#include "tests/base/descriptor_limit.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 64 * 1024;
constexpr int kSlots = 4;

MemoryRegistry& Registry() { return TestRegistry(); }

class ShmRegionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}));
    ASSERT_TRUE(Registry().Allocate(kBytes, &memory_).ok());
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    EXPECT_TRUE(Registry().Free(memory_).ok());
  }

  static constexpr size_t kBytes = 16 * kSlotBytes;

  std::byte* data() { return static_cast<std::byte*>(memory_); }
  Status Progress(int side) {
    bool moved = false;
    return pair_.end(side).Progress(&moved);
  }
  void Rounds() {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(Progress(0).ok());
      EXPECT_TRUE(Progress(1).ok());
    }
  }
  // Posts a send of rank 0 from `from`.
  Send* Post(const std::byte* from, uint32_t bytes, uint64_t tag = 0) {
    Send* send = &sends_.emplace_back();
    send->tag.words[0] = tag;
    send->data = from;
    send->bytes = send->ready = bytes;
    const Status status = pair_.end(0).PostSend(send);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return send;
  }
  Recv* Expect() {
    Recv* recv = &recvs_.emplace_back();
    recv->capacity = kSlotBytes;
    EXPECT_TRUE(pair_.end(1).PostRecv(recv).ok());
    return recv;
  }
  // Until an end that has nothing to do has looked at its socket.
  bool SpinUntil(const std::function<bool()>& over) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!over() && Now() < deadline) Rounds();
    return over();
  }

  ShmPair pair_;
  void* memory_ = nullptr;
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
};

TEST_F(ShmRegionsTest, TheReceiverReadsWhereTheSenderWrote) {
  std::memset(data(), 0x5a, kBytes);
  ASSERT_TRUE(SendsFrom(pair_.end(0), data() + 100, kSlotBytes));
  Recv* recv = Expect();
  Send* send = Post(data() + 100, kSlotBytes, 7);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  EXPECT_TRUE(recv->read_only);
  EXPECT_EQ(recv->tag.words[0], 7u);
  EXPECT_EQ(recv->bytes, kSlotBytes);
  EXPECT_EQ(std::memcmp(recv->data, data() + 100, kSlotBytes), 0);
  data()[100] = std::byte{0x11};  // No copy: a write shows.
  EXPECT_EQ(recv->data[0], std::byte{0x11});
  EXPECT_EQ(send->code, Code::kInProgress) << "completed while the peer still reads";
  EXPECT_EQ(pair_.end(1).stats().memory.mapped, kBytes);
  pair_.end(1).Release(recv);
  Rounds();
  EXPECT_EQ(send->code, Code::kOk);
}

TEST_F(ShmRegionsTest, OnlyRegisteredAndLargeMemoryIsSentInPlace) {
  std::vector<std::byte> ordinary(kSlotBytes);
  Endpoint& end = pair_.end(0);
  EXPECT_FALSE(SendsFrom(end, ordinary.data(), kSlotBytes));
  EXPECT_FALSE(SendsFrom(end, data(), 100));
  EXPECT_FALSE(SendsFrom(end, data(), kSlotBytes + 1));
  EXPECT_FALSE(SendsFrom(end, data() + kBytes - 10, kSlotBytes));
  EXPECT_FALSE(SendsFrom(end, data() - 10, kSlotBytes));
  EXPECT_TRUE(SendsFrom(end, data() + kBytes - kSlotBytes, kSlotBytes));
  Send send;
  send.data = ordinary.data();
  send.bytes = send.ready = kSlotBytes;
  EXPECT_EQ(end.PostSend(&send).code(), Code::kInvalidArgument);
}

TEST_F(ShmRegionsTest, SendsCompleteInOrderAndSlotsAreTheBound) {
  std::vector<Recv*> recvs;
  for (int i = 0; i < kSlots; ++i) recvs.push_back(Expect());
  std::byte* slot = nullptr;
  ASSERT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send* in_place = Post(data(), kSlotBytes);
  Send* staged = Post(slot, kSlotBytes);
  Post(data(), kSlotBytes);
  Post(data(), kSlotBytes);
  Send more;
  more.data = data();
  more.bytes = more.ready = kSlotBytes;
  EXPECT_TRUE(pair_.end(0).PostSend(&more).would_block());
  EXPECT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).would_block());
  Rounds();
  EXPECT_EQ(staged->code, Code::kInProgress) << "overtook the one before it";
  pair_.end(1).Release(recvs[0]);
  Rounds();
  EXPECT_EQ(in_place->code, Code::kOk);
  EXPECT_EQ(staged->code, Code::kOk);
  EXPECT_EQ(sends_[2].code, Code::kInProgress);
  EXPECT_TRUE(pair_.end(0).PostSend(&more).ok());
  for (int i = kSlots - 1; i > 0; --i) pair_.end(1).Release(recvs[i]);
  pair_.end(1).Release([&] {
    Recv* last = Expect();
    Rounds();
    EXPECT_EQ(last->code, Code::kOk);
    return last;
  }());
  Rounds();
  EXPECT_EQ(sends_[3].code, Code::kOk);
  EXPECT_EQ(more.code, Code::kOk);
}

// A slot that has come back may be lent anew, even for data in place, before the send that used it completes.
TEST_F(ShmRegionsTest, ASlotInNewUseIsNotFreedByItsOldSend) {
  Recv* first = Expect();
  Recv* second = Expect();
  Post(data(), kSlotBytes);
  std::byte* slot = nullptr;
  ASSERT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send* staged = Post(slot, kSlotBytes);
  EXPECT_TRUE(Progress(1).ok());
  pair_.end(1).Release(second);
  for (std::byte* again = nullptr; again != slot;)
    ASSERT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &again).ok());
  pair_.end(1).Release(first);
  Rounds();
  EXPECT_EQ(staged->code, Code::kOk);
  std::byte* last = nullptr;
  ASSERT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &last).ok()) << "the slot that stood for data in place";
  EXPECT_NE(last, slot);
  EXPECT_TRUE(pair_.end(0).AcquireSlot(Endpoint::kWholeSlot, &last).would_block());
}

TEST_F(ShmRegionsTest, FreedMemoryIsForgottenOnceNobodyReadsIt) {
  Recv* recv = Expect();
  Post(data(), kSlotBytes);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  ASSERT_TRUE(Registry().Free(memory_).ok());
  memory_ = nullptr;
  std::vector<std::byte> ordinary(kSlotBytes);
  EXPECT_FALSE(SendsFrom(pair_.end(0), ordinary.data(), kSlotBytes));  // Looks, and tells the peer.
  Rounds();
  EXPECT_EQ(pair_.end(1).stats().memory.mapped, kBytes) << "unmapped while held";
  volatile std::byte still_mapped = recv->data[kSlotBytes - 1];
  (void)still_mapped;
  pair_.end(1).Release(recv);
  EXPECT_TRUE(SpinUntil([&] { return pair_.end(1).stats().memory.mapped == 0; }));
  EXPECT_TRUE(Progress(0).ok());
}

TEST(ShmOwnRegionsTest, ThePeerIsToldOfNoMoreThanItTakes) {
  size_t shared = 0;
  size_t forgotten = 0;
  ShmOwnRegions regions(&Registry(), [&](const ShmNotice& notice, int fd) {
    EXPECT_EQ(fd >= 0, notice.kind == ShmNotice::kShares);
    ++(notice.kind == ShmNotice::kShares ? shared : forgotten);
    return true;
  });
  // Many regions would need as many descriptors, so the same few come and go.
  constexpr size_t kAtOnce = 64;
  ShmPlace place;
  for (size_t round = 0; round < 2 * kShmMostRegions / kAtOnce; ++round) {
    void* memory[kAtOnce];
    for (void*& each : memory) {
      ASSERT_TRUE(Registry().Allocate(1, &each).ok());
      ASSERT_TRUE(regions.Find(static_cast<std::byte*>(each), 1, &place));
    }
    for (void* each : memory) ASSERT_TRUE(Registry().Free(each).ok());
  }
  EXPECT_FALSE(regions.Find(nullptr, 1, &place));
  EXPECT_EQ(shared, 2 * kShmMostRegions);
  EXPECT_EQ(forgotten, shared);
}

TEST(ShmOwnRegionsTest, WhatCannotBeToldIsNotSentInPlace) {
  bool has_room = false;
  ShmOwnRegions regions(&Registry(), [&](const ShmNotice&, int) { return has_room; });
  void* memory = nullptr;
  ShmPlace place;
  ASSERT_TRUE(Registry().Allocate(100, &memory).ok());
  EXPECT_FALSE(regions.Find(static_cast<std::byte*>(memory), 100, &place));
  has_room = true;
  EXPECT_TRUE(regions.Find(static_cast<std::byte*>(memory), 100, &place));
  ASSERT_TRUE(Registry().Free(memory).ok());
}

TEST(ShmOwnRegionsTest, WithoutARegistryNothingIsSentInPlace) {
  ShmOwnRegions regions(nullptr, [](const ShmNotice&, int) { return true; });
  void* memory = nullptr;
  ShmPlace place;
  ASSERT_TRUE(Registry().Allocate(100, &memory).ok());
  EXPECT_FALSE(regions.Find(static_cast<std::byte*>(memory), 100, &place));
  ASSERT_TRUE(Registry().Free(memory).ok());
}

// The sender's user has the memory back, and may have changed it before it was read.
TEST_F(ShmRegionsTest, DataOfASenderThatGaveUpIsNotTrusted) {
  Recv* before = Expect();
  Recv* after = Expect();
  Post(data(), kSlotBytes);
  Send* send = Post(data(), kSlotBytes);
  EXPECT_TRUE(Progress(1).ok());
  ASSERT_EQ(after->code, Code::kOk);
  pair_.end(1).Release(before);
  EXPECT_EQ(before->code, Code::kOk);
  pair_.end(0).Close();
  EXPECT_EQ(send->code, Code::kAborted);
  volatile std::byte still_mapped = after->data[kSlotBytes - 1];
  (void)still_mapped;
  pair_.end(1).Release(after);
  EXPECT_EQ(after->code, Code::kPeerLost);
}

TEST_F(ShmRegionsTest, DataOfAKilledSenderIsTrusted) {
  std::memset(data(), 0x42, kSlotBytes);
  Recv* recv = Expect();
  Post(data(), kSlotBytes);
  EXPECT_TRUE(Progress(1).ok());
  ASSERT_EQ(recv->code, Code::kOk);
  EXPECT_EQ(recv->data[kSlotBytes - 1], std::byte{0x42});
  pair_.end(1).Release(recv);  // Nobody said farewell.
  EXPECT_EQ(recv->code, Code::kOk);
}

TEST_F(ShmRegionsTest, ManyNoticesBeforeTheOneThatMattersAreRead) {
  std::vector<void*> others(200);
  for (void*& each : others) {
    ASSERT_TRUE(Registry().Allocate(kSlotBytes, &each).ok());
    ASSERT_TRUE(SendsFrom(pair_.end(0), static_cast<std::byte*>(each), kSlotBytes));
    Rounds();
  }
  ASSERT_TRUE(SpinUntil([&] { return pair_.end(1).stats().memory.mapped == others.size() * kSlotBytes; }));
  for (void* each : others) ASSERT_TRUE(Registry().Free(each).ok());
  Recv* recv = Expect();
  Post(data(), kSlotBytes);  // Tells of all those, and of this one.
  EXPECT_TRUE(Progress(1).ok());
  EXPECT_EQ(recv->code, Code::kOk);
  EXPECT_TRUE(SpinUntil([&] { return pair_.end(1).stats().memory.mapped == kBytes; }));
  pair_.end(1).Release(recv);
}

TEST_F(ShmRegionsTest, APlaceThatCannotBeBreaksTheLink) {
  const auto spoil = [&](const std::function<void(ShmPlace*)>& change) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}));
    sends_.clear();
    recvs_.clear();
    Recv* recv = Expect();
    Post(data(), kSlotBytes);
    change(reinterpret_cast<ShmPlace*>(pair_.mapping().direction(0).ring[0].payload));
    const Status status = Progress(1);
    EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
    EXPECT_NE(status.message().find("place in registered memory"), std::string::npos) << status.ToString();
    EXPECT_EQ(recv->code, Code::kProtocol);
  };
  spoil([](ShmPlace* place) { ++place->region; });
  spoil([](ShmPlace* place) { place->offset = kBytes - kSlotBytes + 1; });
  spoil([](ShmPlace* place) { place->offset = ~uint64_t{0}; });
}

TEST_F(ShmRegionsTest, RandomTrafficFromRegisteredMemoryArrivesUnharmed) {
  for (uint64_t seed = 1; seed <= annulus::Rounds(6, 1000); ++seed) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}));
    const Plan plan{.seed = seed, .slices = 400, .max_bytes = kSlotBytes, .gradual = seed % 2 == 0};
    SliceTalker talkers[] = {{&pair_.end(0), plan}, {&pair_.end(1), plan}};
    SliceListener listeners[] = {{&pair_.end(0), plan}, {&pair_.end(1), plan}};
    const auto done = [&] {
      return talkers[0].done() && talkers[1].done() && listeners[0].done() && listeners[1].done();
    };
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!done() && Now() < deadline) {
      for (int side = 0; side < 2; ++side) {
        ASSERT_TRUE(Progress(side).ok());
        talkers[side].Step();
        listeners[side].Step();
      }
    }
    ASSERT_TRUE(done()) << "seed " << seed;
    EXPECT_GT(pair_.end(0).stats().memory.mapped, 0u) << "nothing went in place";
  }
}

TEST_F(ShmRegionsTest, AReceiverWithoutDescriptorsSaysSo) {
  Expect();
  Post(data(), kSlotBytes);
  std::optional<DescriptorLimit> none(DescriptorLimit::Next());
  const Status status = Progress(1);
  none.reset();
  EXPECT_EQ(status.code(), Code::kSystem) << status.ToString();
  EXPECT_EQ(status.os_errno(), EMFILE) << status.ToString();
  EXPECT_EQ(status.peer(), 1) << "the rank at fault is not the one that lacks descriptors: " << status.ToString();
  EXPECT_NE(status.message().find("rank 1 has no file descriptor left for the file of registered memory of rank 0"),
            std::string::npos)
      << status.ToString();
}

}  // namespace
}  // namespace annulus
