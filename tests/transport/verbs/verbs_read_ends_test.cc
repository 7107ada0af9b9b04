// Verbs links whose slices are read from registered memory of the sender, and that end: what is told of slices that
// were taken, who notices a device that is gone, and that no device touches a landing or lent memory once its owner has
// it back.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <string>

#include "base/clock.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/reactor.h"
#include "transport/transport.h"

namespace annulus {
namespace {

class VerbsReadEndsTest : public ReadLinkTest {
 protected:
  static void AwaitIdleDevice() {
    while (SimulatedVerbs::Counts().waiting > 0) sched_yield();
  }
  void Forget() {
    sends_.clear();
    recvs_.clear();
    for (auto& sends : sends_of_) sends.clear();
  }
  // Sends small slices, which nobody receives. As long as the device has not acknowledged them, an end that closes
  // lingers.
  void PostSmall(int side) {
    for (int i = 0; i < 2; ++i) {
      Send* const send = &sends_of_[static_cast<size_t>(side)].emplace_back();
      std::byte* slot = nullptr;
      ASSERT_TRUE(end(side).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
      send->data = slot;
      send->bytes = send->ready = 8;
      std::memset(slot, 0, 8);
      ASSERT_TRUE(end(side).PostSend(send).ok());
    }
  }

  std::array<std::deque<Send>, 2> sends_of_;  // By side, those of PostSmall.
};

TEST_F(VerbsReadEndsTest, APeerThatTakesASliceAndLeavesHasTakenIt) {
  const Recv* const recv = Expect(to());
  const Send* const send = Post(from(), kSlotBytes);
  bool moved = false;
  ASSERT_TRUE(end(0).Progress(&moved).ok());
  // Only rank 1 works.
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (recv->code != Code::kOk && Now() < deadline) ASSERT_TRUE(end(1).Progress(&moved).ok());
  CloseWholly(end(1));
  Status status;
  while (status.ok() && Now() < deadline) status = end(0).Progress(&moved);
  EXPECT_EQ(send->code, Code::kOk);
  EXPECT_EQ(status.code(), Code::kPeerLost);
}

// The message that tells of it is lost with the device, so its farewell has to.
TEST_F(VerbsReadEndsTest, AFarewellTellsOfASliceThatNoMessageToldOf) {
  const Recv* const recv = Expect(to());
  const Send* const send = Post(from(), kSlotBytes);
  // The slice's header and the READ are carried out.
  SimulatedVerbs::FailAfter(2, IBV_WC_RETRY_EXC_ERR);
  const Status status = [&] {
    bool moved = false;
    EXPECT_TRUE(end(0).Progress(&moved).ok());
    return DriveUntilItFails(1);
  }();
  EXPECT_EQ(recv->code, Code::kOk);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(DriveUntilItFails(0).code(), Code::kPeerLost);
  EXPECT_EQ(send->code, Code::kOk);
}

// All that the sender's device had to do was to send the header. Only the reader's device knows that it has failed, and
// its process computes.
TEST_F(VerbsReadEndsTest, ASenderNoticesThatThePeersDeviceIsGoneThoughItsProcessIsSilent) {
  SimulatedVerbs::SetMachine({.devices = 2});
  OpenWith([](TransportConfig* config) {
    config->settings.Set("verbs_read_bytes", kLeast);
    config->settings.Set("verbs_device", std::string(config->rank == 0 ? "sim0" : "sim1"));
  });
  const Send* const send = Post(from(), kSlotBytes);
  DriveUntilQuiet();
  ASSERT_EQ(send->code, Code::kInProgress);
  SimulatedVerbs::FailPairs(1);
  // As a rank waits: asleep, as soon as nothing moves.
  Status status;
  int sleeps = 0;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    status = end(0).Progress(&moved);
    if (status.ok() && !moved && end(0).Arm()) {
      ++sleeps;
      link_->reactor(0)->WaitUntil(deadline);
    }
  }
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("the peer's device did not answer"), std::string::npos) << status.ToString();
  EXPECT_EQ(send->code, Code::kPeerLost);
  EXPECT_LE(sleeps, 10) << "it spins";
}

// A device that is there is asked again and again, which uses up nothing.
TEST_F(VerbsReadEndsTest, ASenderWaitsForAPeerThatComputesAsLongAsItsDeviceAnswers) {
  const Send* const send = Post(from(), kSlotBytes);
  DriveUntilQuiet();
  const SimulatedCounts before = SimulatedVerbs::Counts();
  while (SimulatedVerbs::Counts().requests < before.requests + 3) {
    bool moved = false;
    ASSERT_TRUE(end(0).Progress(&moved).ok());
    if (end(0).Arm()) link_->reactor(0)->WaitUntil(DeadlineAfter(kContractPatience));
  }
  EXPECT_EQ(send->code, Code::kInProgress);
  const Recv* const recv = Expect(to());
  ASSERT_TRUE(Drive([&] { return send->code == Code::kOk; }));
  EXPECT_EQ(recv->code, Code::kOk);
}

TEST_F(VerbsReadEndsTest, ARefusedReadEndsTheLinkAndNamesThePeer) {
  Expect(to());
  Post(from(), kSlotBytes);
  // The message itself is carried out, and then the READ is refused.
  SimulatedVerbs::FailAfter(1, IBV_WC_REM_ACCESS_ERR);
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    (void)end(0).Progress(&moved);
    status = end(1).Progress(&moved);
  }
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 0);
  EXPECT_NE(status.message().find("refused access to its memory"), std::string::npos) << status.ToString();
}

// Whoever gets a request back changes the memory: a receiver its landing, a sender what it has lent. Nothing is written
// to the landing afterwards, and no receive completes with what the sender wrote later.
TEST_F(VerbsReadEndsTest, MemoryThatIsGivenBackIsTouchedByNobody) {
  for (uint64_t seed = 1; seed <= Rounds(150, 20'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    const int rails = 1 + static_cast<int>(seed / 6 % 2);
    SimulatedVerbs::SetMachine({.devices = rails, .most_reads = 1 + static_cast<int>(seed % 4)});
    Open(kLeast, kLeast, rails == 2 ? "sim0,sim1" : "");
    Forget();
    std::memset(from(), 0x5a, kBytes);
    std::memset(to(), 0x11, kBytes);
    // Some have no landing.
    for (size_t i = 0; i < kSlots; ++i) Expect(random() % 4 == 0 ? nullptr : to() + i * kSlotBytes);
    for (size_t i = 0; i < kSlots; ++i) Post(from() + i * kSlotBytes, kSlotBytes);
    for (const int side : {0, 1}) PostSmall(side);
    for (uint64_t i = random() % 40; i > 0; --i) {
      bool moved = false;
      ASSERT_TRUE(end(static_cast<int>(random() % 2)).Progress(&moved).ok());
      if (random() % 2 == 0) sched_yield();
    }
    // An end gives up, both do one after the other, or a device fails.
    const uint64_t way = random() % 4;
    std::array<bool, 2> closed{};
    if (way == 0) closed[0] = end(0).Close();
    if (way == 1) closed[1] = end(1).Close();
    if (way == 2) SimulatedVerbs::FailPairs();
    if (way == 3) SimulatedVerbs::FailAfter(random() % 3, IBV_WC_RETRY_EXC_ERR);
    std::array<bool, kSlots> is_received{};
    bool is_lent = true;
    std::array<Status, 2> status;
    for (const Deadline deadline = DeadlineAfter(kContractPatience); Now() < deadline;) {
      bool moved = false;
      for (const size_t side : {0, 1}) {
        if (status[side].ok()) status[side] = end(static_cast<int>(side)).Progress(&moved);
      }
      for (size_t i = 0; i < kSlots; ++i) {
        const Recv& recv = recvs_[i];
        if (is_received[i] || recv.code == Code::kInProgress) continue;
        is_received[i] = true;
        if (recv.code == Code::kOk) {
          ASSERT_TRUE(IsAll(recv.data, kSlotBytes, std::byte{0x5a})) << "slice " << i;
          ASSERT_TRUE(recv.data == recv.landing || recv.landing == nullptr);
        }
        if (recv.landing != nullptr) std::memset(recv.landing, 0x77, kSlotBytes);
      }
      if (is_lent && sends_.back().code != Code::kInProgress) {
        std::memset(from(), 0xee, kBytes);
        is_lent = false;
      }
      const bool all_received = std::ranges::count(is_received, true) == kSlots;
      if (!is_lent && all_received && (way == 3 || !status[0].ok() || !status[1].ok())) break;
      if (way < 2 && !closed[way]) closed[way] = end(static_cast<int>(way)).Close();
      // Owners leave once their requests are over. The word of what an end has taken may be what failed; then its
      // farewell tells.
      if (way > 1 && all_received && !closed[1]) closed[1] = end(1).Close();
      if (way > 1 && !is_lent && !closed[0]) closed[0] = end(0).Close();
      if (!moved) link_->Pass();
    }
    ASSERT_FALSE(is_lent);
    AwaitIdleDevice();
    for (const Recv& recv : recvs_) {
      ASSERT_NE(recv.code, Code::kInProgress);
      if (recv.landing != nullptr) {
        ASSERT_TRUE(IsAll(recv.landing, kSlotBytes, std::byte{0x77}));
      }
    }
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
  }
  SimulatedVerbs::Seed(1);
}

}  // namespace
}  // namespace annulus
