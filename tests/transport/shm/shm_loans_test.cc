// Shared memory: slices that are lent, and copied from the memory of the sender's process.
#include "tests/transport/shm/shm_loans.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "transport/shm/shm_peer_memory.h"

namespace annulus {
namespace {

// Whether that many bytes could be copied from there.
bool Copies(ShmPeerMemory* memory, std::byte* to, const std::byte* from) {
  const ShmPeerMemory::Part part = {to, reinterpret_cast<uintptr_t>(from), kBytes};
  return memory->Read({&part, 1});
}

TEST_F(ShmLoansTest, DataLandsAndSlotsComeBack) {
  for (int number = 0; number < 5 * kSlots; ++number) {
    Recv* const recv = Expect(true);
    const Send* const send = Post(number);
    EXPECT_EQ(send->code, Code::kInProgress) << "completed before the data was copied";
    ASSERT_TRUE(Progress(1).ok());
    EXPECT_EQ(recv->data, landing_.data());
    ExpectData(recv, number);
    ASSERT_TRUE(Progress(0).ok());
    EXPECT_EQ(send->code, Code::kOk);
  }
}

TEST_F(ShmLoansTest, WithoutALandingItGoesToItsSlot) {
  for (int number = 0; number < 5 * kSlots; ++number) {
    Recv* const recv = Expect(false);
    const Send* const send = Post(number);
    ASSERT_TRUE(Progress(1).ok());
    ASSERT_TRUE(Progress(0).ok());
    EXPECT_EQ(send->code, Code::kOk) << "waits for the slot";
    std::ranges::fill(memory_, std::byte{0});
    ExpectData(recv, number);
  }
}

// As users of blocking sends expect.
TEST_F(ShmLoansTest, ASendDoesNotWaitForItsReceive) {
  for (int round = 0; round < 3; ++round) {
    for (int number = 0; number < kSlots; ++number) {
      const Send* const send = Post(number);
      EXPECT_FALSE(end(0).Arm()) << "nobody would ring when its patience is over";
      ASSERT_TRUE(SpinUntil([&] { return send->code == Code::kOk; }, {0}));
      std::ranges::fill(memory_, std::byte{0});  // It is the user's again.
    }
    for (int number = 0; number < kSlots; ++number) {
      Recv* const recv = Expect(number % 2 == 0);
      ASSERT_TRUE(Progress(1).ok());
      ExpectData(recv, number);
    }
  }
}

TEST_F(ShmLoansTest, WhatIsCopiedMeanwhileIsAwaitedAsleep) {
  const Send* const send = Post(1);
  ASSERT_TRUE(claim().Move(ShmClaimState::kOffered, ShmClaimState::kCopying));
  Recv* const recv = Expect(true);
  ASSERT_TRUE(Progress(1).ok());
  EXPECT_FALSE(recv->started);
  EXPECT_TRUE(end(1).Arm()) << "it has not arrived";
  claim().state = ShmClaimState::kOffered;
  ASSERT_TRUE(SpinUntil([&] { return send->code == Code::kOk; }, {0}));
  ExpectBell(1);
  ASSERT_TRUE(Progress(1).ok());
  ExpectData(recv, 1);
}

TEST_F(ShmLoansTest, WhatThePeerReadsIsAwaitedAsleep) {
  const Send* const send = Post(1);
  ASSERT_TRUE(claim().Move(ShmClaimState::kOffered, ShmClaimState::kReading));
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_TRUE(end(0).Arm()) << "only the peer can go on";
  claim().state = ShmClaimState::kOffered;
  Recv* const recv = Expect(true);
  ASSERT_TRUE(Progress(1).ok());
  ExpectBell(0);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(send->code, Code::kOk);
  ExpectData(recv, 1);
}

// As when a communicator is destroyed: its sends have ended, and its links are still open.
TEST_F(ShmLoansTest, WhatIsWithdrawnDoesNotArrive) {
  const Send* const send = Post(1);
  in_place(0).Withdraw();
  memory_ = Data(2);  // It is the user's again.
  Recv* const recv = Expect(true);
  for (int round = 0; round < 10; ++round) {
    for (const int side : {0, 1}) ASSERT_TRUE(Progress(side).ok());
  }
  EXPECT_EQ(send->code, Code::kInProgress);
  EXPECT_FALSE(recv->started);
  EXPECT_TRUE(end(0).Arm()) << "nothing is left to do";
  end(0).Close();
  EXPECT_EQ(send->code, Code::kAborted);
  ASSERT_TRUE(SpinUntil([&] { return recv->code != Code::kInProgress; }, {1}));
  EXPECT_EQ(recv->code, Code::kPeerLost);
  EXPECT_EQ(landing_, std::vector<std::byte>(kBytes));
}

TEST_F(ShmLoansTest, WhatWasReadBeforeAWithdrawalIsSent) {
  Recv* const recv = Expect(true);
  const Send* const send = Post(1);
  ASSERT_TRUE(Progress(1).ok());
  in_place(0).Withdraw();
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(send->code, Code::kOk);
  ExpectData(recv, 1);
}

TEST_F(ShmLoansTest, ClaimsThatTheOtherEndCannotMakeBreakTheLink) {
  for (const auto state : {ShmClaimState::kCopying, ShmClaimState::kCopied, ShmClaimState(99)}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    const Send* const send = Post(1);
    claim().state = state;
    const Status status = Progress(0);
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_NE(status.message().find("'claim'"), std::string::npos) << status.message();
    EXPECT_EQ(send->code, Code::kProtocol);
  }
  for (const auto state : {ShmClaimState::kRead, ShmClaimState::kReading, ShmClaimState(99)}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    Post(1);
    claim().state = state;
    Expect(true);
    EXPECT_EQ(Progress(1).code(), Code::kProtocol);
  }
}

// Slots that it has do not come back, also where what it has sent is unread.
TEST_F(ShmLoansTest, ASendToAPeerThatHasLeftFindsThatNoSlotIsFree) {
  const std::byte word[8] = {};
  ASSERT_TRUE(end(1).shortcuts().short_path->SendCopy({}, word, sizeof word).ok());
  end(1).shortcuts().short_path->Flush();
  for (int number = 0; number < kSlots; ++number) {
    const Send* const send = Post(number);
    ASSERT_TRUE(SpinUntil([&] { return send->code == Code::kOk; }, {0}));
  }
  end(1).Close();
  ASSERT_TRUE(SpinUntil([&] { return !lends(); }, {0}));
  Send late;
  late.data = memory_.data();
  late.bytes = late.ready = kBytes;
  EXPECT_EQ(end(0).PostSend(&late).code(), Code::kPeerLost);
}

// What the peer has sent before can still be received.
TEST_F(ShmLoansTest, ALoanEndsThatThePeerDiedReading) {
  const std::byte word[8] = {std::byte{7}};
  ASSERT_TRUE(end(1).shortcuts().short_path->SendCopy({}, word, sizeof word).ok());
  const Send* const send = Post(1);
  ASSERT_TRUE(claim().Move(ShmClaimState::kOffered, ShmClaimState::kReading));
  ASSERT_TRUE(Progress(0).ok());
  ASSERT_TRUE(end(0).Arm());
  pair_.Sever(1);
  ExpectBell(0);
  ASSERT_TRUE(SpinUntil([&] { return send->code != Code::kInProgress; }, {0}));
  EXPECT_EQ(send->code, Code::kPeerLost);
  EXPECT_EQ(claim().state.load(), ShmClaimState::kWithdrawn);
  EXPECT_TRUE(end(0).Arm()) << "nothing is left to do before a receive is posted";
  Recv recv;
  recv.capacity = kBytes;
  ASSERT_TRUE(end(0).PostRecv(&recv).ok());
  ASSERT_TRUE(SpinUntil([&] { return recv.code != Code::kInProgress; }, {0}));
  ASSERT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(recv.data[0], word[0]);
  end(0).Release(&recv);
  ASSERT_TRUE(SpinUntil([&] { return Progress(0).code() == Code::kPeerLost; }, {}));
}

TEST_F(ShmLoansTest, WhatIsGivenUpDoesNotArrive) {
  Recv* const recv = Expect(true);
  const Send* const send = Post(1);
  end(0).Close();
  EXPECT_EQ(send->code, Code::kAborted);
  ASSERT_TRUE(SpinUntil([&] { return recv->code != Code::kInProgress; }, {1}));
  EXPECT_EQ(recv->code, Code::kPeerLost);
  EXPECT_EQ(landing_, std::vector<std::byte>(kBytes));
}

TEST_F(ShmLoansTest, APeerThatDiedWithALoanIsLost) {
  Post(1);
  claim().state = ShmClaimState::kCopying;  // As if killed then.
  Recv* const recv = Expect(false);
  pair_.Sever(0);
  ASSERT_TRUE(SpinUntil([&] { return recv->code != Code::kInProgress; }, {1}));
  EXPECT_EQ(recv->code, Code::kPeerLost);
}

// The kernel may refuse at any time: the sender copies then, and lends no more.
TEST_F(ShmLoansTest, WhatCannotBeReadGoesThroughItsSlot) {
  const auto expect = [&](const std::function<void()>& spoil) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    Recv* const recv = Expect(true);
    const Send* const send = Post(1);
    spoil();
    ASSERT_TRUE(SpinUntil([&] { return recv->code != Code::kInProgress; }, {1, 0}));
    ExpectData(recv, 1);
    EXPECT_NE(recv->data, recv->landing);
    EXPECT_EQ(send->code, Code::kOk);
    EXPECT_FALSE(lends());
    EXPECT_FALSE(lands());
  };
  expect([&] {  // No memory of the peer.
    const uint64_t address = 16;
    std::memcpy(descriptor().payload, &address, sizeof(address));
  });
  expect([&] {  // Another process.
    ShmHeader* const header = reinterpret_cast<ShmHeader*>(reinterpret_cast<std::byte*>(pair_.mapping().end(0)) - 256);
    ASSERT_EQ(header->magic, kShmMagic);
    header->nonce[0] ^= 1;
  });
}

TEST_F(ShmLoansTest, WrongDescriptorsBreakTheLink) {
  const auto expect = [&](const std::string& field, const std::function<void()>& spoil) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    Expect(true);
    Post(1);
    spoil();
    const Status status = Progress(1);
    EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
    EXPECT_NE(status.message().find("'" + field + "'"), std::string::npos) << status.ToString();
    EXPECT_EQ(landing_, std::vector<std::byte>(kBytes));
  };
  expect("slot", [&] { descriptor().slot = kShmLent | kSlots; });
  expect("slot", [&] { descriptor().slot = kShmLent | kShmInPlace; });
  expect("bytes", [&] { descriptor().bytes = kSlotBytes + 1; });
  expect("bytes against the receive's capacity", [&] { descriptor().bytes = kBytes + 1; });
}

TEST_F(ShmLoansTest, TheShortWayCopiesThem) {
  ShortPath& path = *end(1).shortcuts().short_path;
  for (int number = 0; number < 5 * kSlots; ++number) {
    const Send* const send = Post(number);
    ShortPath::Slice slice;
    ASSERT_TRUE(path.Peek(&slice));
    EXPECT_EQ(slice.data, nullptr);
    ASSERT_EQ(slice.bytes, kBytes);
    ASSERT_TRUE(path.PopInto(landing_.data()));
    EXPECT_EQ(landing_, Data(number));
    ASSERT_TRUE(Progress(0).ok());
    EXPECT_EQ(send->code, Code::kOk);
    EXPECT_FALSE(path.Peek(&slice));
  }
}

TEST_F(ShmLoansTest, TheShortWayLeavesWhatItCannotCopy) {
  ShortPath& path = *end(1).shortcuts().short_path;
  Post(1);
  claim().state = ShmClaimState::kCopying;
  ShortPath::Slice slice;
  ASSERT_TRUE(path.Peek(&slice));
  EXPECT_FALSE(path.PopInto(landing_.data()));
  claim().state = ShmClaimState::kOffered;
  Recv* const recv = Expect(true);
  ASSERT_TRUE(Progress(1).ok());
  ExpectData(recv, 1);
}

TEST_F(ShmLoansTest, SmallSlicesAndRegisteredMemoryAreNotLent) {
  EXPECT_FALSE(in_place(0).Lends(memory_.data(), ShmSender::kLeastLent - 1));
  EXPECT_TRUE(in_place(0).Lends(memory_.data(), ShmSender::kLeastLent));
  EXPECT_FALSE(in_place(0).Lends(memory_.data(), kSlotBytes + 1));
  void* registered = nullptr;
  ASSERT_TRUE(TestRegistry().Allocate(kBytes, &registered).ok());
  EXPECT_FALSE(in_place(0).Lends(static_cast<std::byte*>(registered), kBytes));
  EXPECT_TRUE(TestRegistry().Free(registered).ok());
}

TEST_F(ShmLoansTest, TheSettingTurnsThemOffAtBothEnds) {
  for (const int off : {0, 1}) {
    KernelCopies copies[2] = {KernelCopies::kAuto, KernelCopies::kAuto};
    copies[off] = KernelCopies::kOff;
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain, copies));
    EXPECT_EQ(lands(), off == 0);
    EXPECT_FALSE(lends());
  }
}

TEST(ShmPeerMemory, ReadsOnlyAProcessWithTheNonce) {
  const ShmNonce nonce{11, 12};
  const ShmNonce other{11, 13};
  const uint64_t address = reinterpret_cast<uintptr_t>(&nonce);
  EXPECT_FALSE(ShmPeerMemory(0, address, nonce).works());
  EXPECT_FALSE(ShmPeerMemory(getpid(), address, other).works());
  EXPECT_FALSE(ShmPeerMemory(getpid(), 16, nonce).works());
  ShmPeerMemory memory(getpid(), address, nonce);
  ASSERT_TRUE(memory.works());
  const std::vector<std::byte> from = Data(1);
  std::vector<std::byte> to(kBytes);
  EXPECT_TRUE(Copies(&memory, to.data(), from.data()));
  EXPECT_EQ(from, to);
  EXPECT_FALSE(Copies(&memory, to.data(), reinterpret_cast<std::byte*>(16)));
  EXPECT_FALSE(memory.works());
  EXPECT_FALSE(Copies(&memory, to.data(), from.data())) << "tried again";
}

TEST(ShmPeerMemory, AProcessThatIsGoneIsNotRead) {
  const ShmNonce nonce{21, 22};  // The child has it at the same address.
  pid_t gone = 0;
  {
    ForkedChild child([](int channel) { return Swap(channel, "here") == "end" ? 0 : 1; });
    gone = child.pid();
    ShmPeerMemory memory(gone, reinterpret_cast<uintptr_t>(&nonce), nonce);
    if (!memory.works()) GTEST_SKIP() << "processes may not read each other here";
    EXPECT_EQ(Swap(child.channel(), "end"), "here");
    EXPECT_EQ(child.Wait(DeadlineAfter(kContractPatience)), 0);
    std::vector<std::byte> to(kBytes);
    EXPECT_FALSE(Copies(&memory, to.data(), to.data()));
  }
  EXPECT_FALSE(ShmPeerMemory(gone, reinterpret_cast<uintptr_t>(&nonce), nonce).works());
}

}  // namespace
}  // namespace annulus
