// What only the simulated world has: replay, virtual time, reordering between links, faults on command, control
// messages.
#include "transport/sim/sim_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace annulus {
namespace {

constexpr int kMostEvents = 1000000;  // Far more than any test here makes; bounds every loop.
constexpr uint32_t kBytes = 1000;

// One slice from `from` to `to`; `fill` tells slices apart.
struct Transfer {
  Transfer(SimWorld* world, int from, int to, int channel = 0, int fill = 1)
      : sender(world->endpoint(from, to, channel)), receiver(world->endpoint(to, from, channel)) {
    recv.capacity = kBytes;
    EXPECT_TRUE(receiver->PostRecv(&recv).ok());
    std::byte* slot = nullptr;
    EXPECT_TRUE(sender->AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    std::memset(slot, fill, kBytes);
    send.data = slot;
    send.bytes = send.ready = kBytes;
    EXPECT_TRUE(sender->PostSend(&send).ok());
  }
  Status Progress() {
    bool moved = false;
    Status sent = sender->Progress(&moved);
    Status received = receiver->Progress(&moved);
    return received.ok() ? sent : received;
  }
  bool received() const { return recv.code == Code::kOk; }

  Endpoint* sender;
  Endpoint* receiver;
  Send send;
  Recv recv;
};

// Lets everything happen that will.
template <class Drive>
void RunOut(SimWorld* world, Drive drive) {
  for (int i = 0; i < kMostEvents; ++i) {
    drive();
    drive();  // What the first let one end take makes room at the other.
    if (!world->AdvanceToNextEvent()) return;
  }
  ADD_FAILURE() << "the world never comes to rest";
}

// When and how a fixed load arrives, as text.
std::string TraceOf(uint64_t seed) {
  SimWorld world({.seed = seed, .nranks = 3});
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int from = 0; from < 3; ++from) {
    for (int hop = 1; hop < 3; ++hop) {
      transfers.push_back(std::make_unique<Transfer>(&world, from, (from + hop) % 3, from * 3 + hop));
    }
  }
  std::string trace;
  RunOut(&world, [&] {
    for (auto& transfer : transfers) {
      EXPECT_TRUE(transfer->Progress().ok());
      trace += std::to_string(world.now()) + ":" + std::to_string(transfer->recv.arrived) + " ";
    }
  });
  for (auto& transfer : transfers) EXPECT_TRUE(transfer->received());
  return trace;
}

TEST(SimWorldTest, ASeedReplaysExactlyAndAnotherSeedDiffers) {
  const std::string first = TraceOf(1);
  EXPECT_EQ(first, TraceOf(1));
  EXPECT_NE(first, TraceOf(2));
}

TEST(SimWorldTest, LinksOvertakeEachOther) {
  bool first_won = false;
  bool second_won = false;
  for (uint64_t seed = 1; seed < 60; ++seed) {
    SimWorld world({.seed = seed, .nranks = 3});
    Transfer first(&world, 1, 0);
    Transfer second(&world, 2, 0);
    for (int i = 0; i < kMostEvents && !first.received() && !second.received(); ++i) {
      ASSERT_TRUE(first.Progress().ok() && second.Progress().ok());
      world.AdvanceToNextEvent();
    }
    first_won |= first.received();
    second_won |= second.received();
  }
  EXPECT_TRUE(first_won && second_won);
}

TEST(SimWorldTest, SlicesComeInSeveralPieces) {
  SimWorld world({.seed = 5});
  Transfer transfer(&world, 0, 1);
  int partial = 0;
  RunOut(&world, [&] {
    EXPECT_TRUE(transfer.Progress().ok());
    partial += transfer.recv.arrived > 0 && transfer.recv.arrived < kBytes;
  });
  EXPECT_TRUE(transfer.received());
  EXPECT_GT(partial, 0);
}

TEST(SimWorldTest, MixedWorldsHaveLinksOfBothKinds) {
  SimWorld world({.seed = 3, .nranks = 10});
  int slots = 0;
  for (int peer = 1; peer < 10; ++peer) {
    const Limits& limits = world.endpoint(0, peer, 0)->limits();
    EXPECT_EQ(limits.shares_memory, !limits.sends_from.Has(MemoryKind::kHost));
    EXPECT_EQ(limits.shares_memory, world.endpoint(peer, 0, 0)->limits().shares_memory);
    slots += limits.shares_memory;
  }
  EXPECT_GT(slots, 0);
  EXPECT_LT(slots, 9);
}

TEST(SimWorldTest, MemoryWrittenBeforeTheSendCompletesIsFoundOut) {
  SimWorld world({.seed = 6});
  Transfer transfer(&world, 0, 1);
  ASSERT_TRUE(transfer.Progress().ok());
  ASSERT_EQ(transfer.send.code, Code::kInProgress);
  std::memset(const_cast<std::byte*>(transfer.send.data), 2, kBytes);  // Lent: must not be touched yet.
  RunOut(&world, [&] { EXPECT_TRUE(transfer.Progress().ok()); });
  EXPECT_EQ(transfer.recv.data[kBytes - 1], std::byte{2});
}

TEST(SimWorldTest, AReleasedSlotIsPoisoned) {
  SimWorld world({.seed = 6});
  Transfer transfer(&world, 0, 1);
  RunOut(&world, [&] { EXPECT_TRUE(transfer.Progress().ok()); });
  const std::byte* data = transfer.recv.data;
  EXPECT_EQ(data[0], std::byte{1});
  transfer.receiver->Release(&transfer.recv);
  EXPECT_NE(data[0], std::byte{1});
}

TEST(SimWorldDeathTest, MisuseOfTheContractStopsTheTest) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  SimWorld world({.seed = 6, .kind = SimKind::kSlots});
  Transfer transfer(&world, 0, 1);
  RunOut(&world, [&] { EXPECT_TRUE(transfer.Progress().ok()); });
  transfer.receiver->Release(&transfer.recv);
  EXPECT_DEATH(transfer.receiver->Release(&transfer.recv), "check failed");
  EXPECT_DEATH((void)transfer.sender->PostSend(&transfer.send), "check failed") << "a slot is posted once";
  std::byte user[1] = {};
  Send send;
  send.data = user;
  send.bytes = send.ready = 1;
  EXPECT_DEATH((void)transfer.sender->PostSend(&send), "check failed") << "user memory on a slots-only link";
}

TEST(SimWorldTest, ACutLinkIsLostAtBothEnds) {
  SimWorld world({.seed = 7});
  Transfer transfer(&world, 0, 1);
  world.CutLink(0, 1, 0);
  RunOut(&world, [&] { (void)transfer.Progress(); });
  bool moved = false;
  for (Endpoint* end : {transfer.sender, transfer.receiver}) {
    const Status status = end->Progress(&moved);
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.peer(), end->peer());
  }
  EXPECT_EQ(transfer.recv.code, Code::kPeerLost);
}

TEST(SimWorldTest, AMutedLinkStaysSilentAndOthersWork) {
  SimWorld world({.seed = 8, .nranks = 3});
  Transfer muted(&world, 0, 1);
  Transfer other(&world, 0, 2);
  world.MuteLink(0, 1, 0);
  world.AdvanceToNextEvent();
  RunOut(&world, [&] { EXPECT_TRUE(muted.Progress().ok() && other.Progress().ok()); });
  EXPECT_EQ(muted.recv.code, Code::kInProgress);
  EXPECT_TRUE(other.received());
}

TEST(SimWorldTest, ADamagedPieceIsAProtocolErrorThatNamesItsSender) {
  SimWorld world({.seed = 9});
  Transfer transfer(&world, 1, 0);
  world.CorruptLink(1, 0, 0);
  world.AdvanceToNextEvent();
  RunOut(&world, [&] { (void)transfer.Progress(); });
  EXPECT_EQ(transfer.recv.code, Code::kProtocol);
  bool moved = false;
  const Status status = transfer.receiver->Progress(&moved);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(transfer.sender->Progress(&moved).code(), Code::kPeerLost);
}

TEST(SimWorldTest, ADelayHoldsEverythingBackAndLosesNothing) {
  constexpr Nanoseconds kDelay = 10 * kMillisecond;
  SimWorld world({.seed = 10});
  Transfer transfer(&world, 0, 1);
  world.DelayLink(0, 1, 0, kDelay);
  world.AdvanceToNextEvent();
  RunOut(&world, [&] {
    EXPECT_TRUE(transfer.Progress().ok());
    EXPECT_TRUE(world.now() >= kDelay || transfer.recv.arrived == 0);
  });
  EXPECT_TRUE(transfer.received());
}

TEST(SimWorldTest, AKilledRanksRequestsAreTouchedNoMoreAndItsPeersKnow) {
  SimWorld world({.seed = 11, .nranks = 3});
  auto doomed = std::make_unique<Transfer>(&world, 0, 1);
  Recv waiting;
  waiting.capacity = kBytes;
  Endpoint* survivor = world.endpoint(2, 0, 0);
  world.endpoint(0, 2, 0);
  ASSERT_TRUE(survivor->PostRecv(&waiting).ok());
  world.KillRank(0, 100);
  RunOut(&world, [&] {
    bool moved = false;
    if (world.runs(0)) (void)doomed->sender->Progress(&moved);
    (void)survivor->Progress(&moved);
    EXPECT_EQ(world.dead(0), world.now() >= 100);
  });
  EXPECT_EQ(doomed->send.code, Code::kInProgress) << "the dead do not complete their requests";
  EXPECT_EQ(waiting.code, Code::kPeerLost);
}

TEST(SimWorldTest, AStoppedRankDoesNothingUntilItIsResumed) {
  constexpr Nanoseconds kStop = 1;
  constexpr Nanoseconds kResume = 5 * kMillisecond;
  SimWorld world({.seed = 12});
  world.StopRank(1, kStop);
  world.ResumeRank(1, kResume);
  while (world.now() < kStop) ASSERT_TRUE(world.AdvanceToNextEvent());
  Transfer transfer(&world, 0, 1);
  RunOut(&world, [&] {
    EXPECT_TRUE(transfer.Progress().ok());
    EXPECT_EQ(world.runs(1), world.now() >= kResume);
    EXPECT_TRUE(world.runs(1) || transfer.recv.arrived == 0);
  });
  EXPECT_TRUE(transfer.received());
}

// Everything that rank 0's control plane hears, in order.
struct Hearing {
  explicit Hearing(SimWorld* world) {
    world->SetControl(0, {[this](int from, std::string bytes) { heard.push_back(std::to_string(from) + bytes); },
                          [this](int rank) { heard.push_back(std::to_string(rank) + " closed"); }});
  }
  std::vector<std::string> From(int rank) const {
    std::vector<std::string> found;
    for (const std::string& text : heard) {
      if (text[0] == static_cast<char>('0' + rank)) found.push_back(text);
    }
    return found;
  }
  std::vector<std::string> heard;
};

TEST(SimWorldTest, ControlMessagesKeepTheirOrderPerRankAndTheEndComesLast) {
  SimWorld world({.seed = 13, .nranks = 3});
  Hearing hearing(&world);
  for (const char* text : {"a", "b", "c"}) {
    world.Send(1, 0, text);
    world.Send(2, 0, text);
  }
  world.KillRank(1, 10);
  RunOut(&world, [] {});
  EXPECT_EQ(hearing.From(1), (std::vector<std::string>{"1a", "1b", "1c", "1 closed"}));
  EXPECT_EQ(hearing.From(2), (std::vector<std::string>{"2a", "2b", "2c"}));
  EXPECT_GT(world.now(), 0);
}

TEST(SimWorldTest, TheDeadNeitherSendNorHear) {
  SimWorld world({.seed = 14, .nranks = 3});
  Hearing hearing(&world);
  world.KillRank(1, 10);
  while (!world.dead(1)) ASSERT_TRUE(world.AdvanceToNextEvent());
  world.Send(1, 0, "ghost");
  world.KillRank(0, world.now());
  world.Send(2, 0, "too late");
  RunOut(&world, [] {});
  EXPECT_TRUE(hearing.heard.empty());
}

TEST(SimWorldTest, AStoppedRankHearsEverythingWhenItIsResumed) {
  constexpr Nanoseconds kResume = 5 * kMillisecond;
  SimWorld world({.seed = 15});
  Hearing hearing(&world);
  world.StopRank(0, 0);
  world.ResumeRank(0, kResume);
  world.Send(1, 0, "x");
  world.Send(1, 0, "y");
  RunOut(&world, [&] { EXPECT_TRUE(hearing.heard.empty() || world.now() >= kResume); });
  EXPECT_EQ(hearing.heard, (std::vector<std::string>{"1x", "1y"}));
}

}  // namespace
}  // namespace annulus
