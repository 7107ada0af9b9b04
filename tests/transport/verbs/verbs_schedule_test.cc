// Links over verbs in the rare orders of events that a random test hardly ever meets: credits that are used up on both
// sides at once, an end that leaves while messages wait.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr int kSlots = 2;
constexpr size_t kSlotBytes = 4096;

std::unique_ptr<ContractLink> OpenLink(const LinkOptions& options = {.slot_bytes = kSlotBytes, .slots = kSlots}) {
  const auto make = [](const TransportConfig& config) {
    return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
  };
  return TransportLink::Open(make, nullptr, options);
}

// Drives both ends until `done()`; false when that takes too long or a link fails.
template <class Done>
bool Drive(ContractLink* link, const Done& done) {
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (!done()) {
    if (Now() > deadline) return false;
    bool moved = false;
    for (const int side : {0, 1}) {
      const Status status = link->end(side).Progress(&moved);
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) return false;
    }
    if (!moved) link->Pass();
  }
  return true;
}

// Lets both ends do all that they can do by themselves: that is over when the device is idle through many rounds.
bool Drain(ContractLink* link) {
  uint64_t seen = UINT64_MAX;
  int quiet = 0;
  return Drive(link, [&] {
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    const uint64_t now = counts.requests + counts.completions;
    quiet = now == seen && counts.waiting == 0 ? quiet + 1 : 0;
    seen = now;
    return quiet > 100;
  });
}

bool Post(Endpoint& end, size_t bytes, Send* send) {
  std::byte* slot = nullptr;
  if (!end.AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) return false;
  *send = Send();
  send->data = slot;
  send->bytes = send->ready = bytes;
  return end.PostSend(send).ok();
}

class VerbsScheduleTest : public ::testing::Test {
 protected:
  ~VerbsScheduleTest() override {
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

// Both ends hold all receives that they may, and have sent each other all messages that credits allow. Then each
// releases a slot: what returns it must not use up the receive that later returns all others.
TEST_F(VerbsScheduleTest, SlotsThatAreReturnedLeaveTheReceiveThatReturnsReceives) {
  const auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  std::array<std::array<Recv, kSlots>, 2> held;
  std::array<std::vector<Send>, 2> sends;
  for (const size_t side : {0, 1}) {
    for (Recv& recv : held[side]) {
      recv.capacity = kSlotBytes;
      ASSERT_TRUE(link->end(static_cast<int>(side)).PostRecv(&recv).ok());
    }
    sends[side].resize(kSlots);
    for (Send& send : sends[side]) ASSERT_TRUE(Post(link->end(static_cast<int>(side)), 1000, &send));
  }
  const auto all_held = [&] {
    for (const auto& side : held) {
      for (const Recv& recv : side) {
        if (recv.code != Code::kOk) return false;
      }
    }
    return true;
  };
  ASSERT_TRUE(Drive(link.get(), all_held));
  ASSERT_TRUE(Drain(link.get()));

  // Short messages, which nobody receives, until neither end sends any more.
  std::array<size_t, 2> posted{};
  std::array<std::vector<std::unique_ptr<Send>>, 2> shorts;
  for (size_t before = UINT64_MAX; posted[0] + posted[1] != before;) {
    before = posted[0] + posted[1];
    for (const size_t side : {0, 1}) {
      auto send = std::make_unique<Send>();
      if (!Post(link->end(static_cast<int>(side)), 8, send.get())) continue;
      shorts[side].push_back(std::move(send));
      ++posted[side];
    }
    ASSERT_TRUE(Drain(link.get()));
  }
  for (const size_t side : {0, 1}) link->end(static_cast<int>(side)).Release(&held[side][0]);
  ASSERT_TRUE(Drain(link.get()));

  // All is received now, and so all sends end.
  std::array<size_t, 2> received{};
  for (const size_t side : {0, 1}) {
    Endpoint& end = link->end(static_cast<int>(side));
    end.Release(&held[side][1]);
    while (received[side] < posted[1 - side]) {
      Recv recv;
      recv.capacity = kSlotBytes;
      ASSERT_TRUE(end.PostRecv(&recv).ok());
      ASSERT_TRUE(Drive(link.get(), [&] { return recv.code == Code::kOk; })) << "message " << received[side];
      end.Release(&recv);
      ++received[side];
    }
  }
  const auto all_sent = [&] {
    for (const auto& side : shorts) {
      for (const auto& send : side) {
        if (send->code != Code::kOk) return false;
      }
    }
    return true;
  };
  EXPECT_TRUE(Drive(link.get(), all_sent));
  for (const int side : {0, 1}) link->end(side).Close();
}

// Nothing that was posted stays in progress once the peer has left, also while a message of it is not yet received.
TEST_F(VerbsScheduleTest, SendsEndWithThePeerWhileItsMessageWaits) {
  const auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  Send message;
  ASSERT_TRUE(Post(link->end(1), 1000, &message));
  ASSERT_TRUE(Drain(link.get()));
  Send send;
  ASSERT_TRUE(Post(link->end(0), 1000, &send));
  std::byte* slot = nullptr;
  ASSERT_TRUE(link->end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  CloseWholly(link->end(1));
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (send.code == Code::kInProgress && Now() < deadline) {
    bool moved = false;
    ASSERT_TRUE(link->end(0).Progress(&moved).ok()) << "the message is not received yet";
    if (!moved) link->Pass();
  }
  EXPECT_EQ(send.code, Code::kPeerLost);
  Send late;
  late.data = slot;
  EXPECT_EQ(link->end(0).PostSend(&late).code(), Code::kPeerLost);

  Recv recv;
  recv.capacity = kSlotBytes;
  ASSERT_TRUE(link->end(0).PostRecv(&recv).ok());
  bool moved = false;
  (void)link->end(0).Progress(&moved);
  EXPECT_EQ(recv.code, Code::kOk);
  link->end(0).Release(&recv);
}

// What a heavy slice leaves for the next round neither waits for an event nor is forgotten. So between two such slices
// an end takes what has come and tells of it.
TEST_F(VerbsScheduleTest, AHeavySliceEndsItsRoundAndTheRestFollows) {
  constexpr size_t kHeavyBytes = 64 * 1024;
  constexpr int kHeavySlots = 4;
  const auto link = OpenLink({.slot_bytes = kHeavyBytes, .slots = kHeavySlots});
  ASSERT_NE(link, nullptr);
  Endpoint& end = link->end(0);
  std::array<Send, kHeavySlots> sends;
  std::array<Recv, kHeavySlots> recvs;
  for (Recv& recv : recvs) {
    recv.capacity = kHeavyBytes;
    ASSERT_TRUE(link->end(1).PostRecv(&recv).ok());
  }
  for (Send& send : sends) ASSERT_TRUE(Post(end, kHeavyBytes, &send));
  for (int round = 1; round <= kHeavySlots; ++round) {
    bool moved = false;
    ASSERT_TRUE(end.Progress(&moved).ok());
    EXPECT_TRUE(moved);
    const bool more = round < kHeavySlots;
    EXPECT_FALSE(more && end.Arm()) << "it has more to hand over, and must not sleep";
    const auto arrived = [&] { return recvs[static_cast<size_t>(round) - 1].code == Code::kOk; };
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!arrived() && Now() < deadline) {
      ASSERT_TRUE(link->end(1).Progress(&moved).ok());
      link->Pass();
    }
    EXPECT_TRUE(arrived()) << "slice " << round;
    EXPECT_FALSE(more && recvs[static_cast<size_t>(round)].code != Code::kInProgress) << "after " << round;
  }
  for (Recv& recv : recvs) link->end(1).Release(&recv);
  EXPECT_TRUE(Drive(link.get(), [&] { return sends[kHeavySlots - 1].code == Code::kOk; }));
  for (const int side : {0, 1}) link->end(side).Close();
}

}  // namespace
}  // namespace annulus
