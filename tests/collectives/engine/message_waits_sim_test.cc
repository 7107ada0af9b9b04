// What messages wait for, on simulated links: when the clock of each runs, what those that nobody asks for hold up,
// what a peer that is lost or breaks the protocol does to receives from any rank.

#include <gtest/gtest.h>

#include <list>
#include <string>
#include <vector>

#include "collectives/algorithms/slice_tag.h"
#include "collectives/engine/messages.h"
#include "tests/collectives/engine/sim_message_rank.h"
#include "tests/device/sim_device.h"
#include "transport/sim/sim_world.h"

namespace annulus {
namespace {

constexpr Nanoseconds kNever = 24 * 3600 * kSecond;
constexpr char kNoRoomText[] = "messages that no receive asks for take up all the room";

// One end of a message.
struct End {
  std::vector<int32_t> data;
  bool is_done = false;
};

// Ranks whose messages a test posts one by one.
class Ranks {
 public:
  explicit Ranks(int nranks, uint64_t seed = 1) : world_(WorldOf(nranks, seed)) {
    const auto done = [](void* cookie, int, int32_t) { static_cast<End*>(cookie)->is_done = true; };
    for (int r = 0; r < nranks; ++r) ranks_.emplace_back(&world_, r, plan_, done);
  }

  SimWorld& world() { return world_; }
  int channel() const { return plan_.channels; }
  Endpoint* link(int r, int peer) { return ranks_[r].link(peer, channel()); }
  Messages& messages(int r) { return ranks_[r].messages(); }
  const Status& status(int r) const { return ranks_[r].status(); }

  const End* Send(int from, int to, int32_t tag, size_t count, Nanoseconds timeout = 0) {
    return Post(from, to, {true, tag, count, timeout});
  }
  const End* Receive(int to, int from, int32_t tag, size_t count, Nanoseconds timeout = 0) {
    return Post(to, from, {false, tag, count, timeout});
  }
  // Into memory of a device, which takes its time.
  const End* ReceiveOnDevice(int to, int from, size_t count, uint64_t seed) {
    std::byte* const memory = ranks_[to].OpenDevice(seed)->Allocate(count * sizeof(int32_t));
    return Post(to, from, {false, 0, count, 0, {memory, ranks_[to].queue()}});
  }
  void Leave(int r) { ranks_[r].End(); }

  // Lets everything move that can before the time goes on.
  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (SimMessageRank& rank : ranks_) moved |= rank.Drive();
    }
  }
  void Run() {
    do {
      Settle();
    } while (world_.AdvanceToNextEvent());
  }

 private:
  struct Wanted {
    bool sends;
    int32_t tag;
    size_t count;
    Nanoseconds timeout;
    Buffer output = {};  // Null: that of the End.
  };

  SimOptions WorldOf(int nranks, uint64_t seed) {
    plan_.slots = 2;
    plan_.slice_bytes = 4096;
    plan_.small_bytes = 64;
    SimOptions options;
    options.seed = seed;
    options.nranks = nranks;
    options.slots = plan_.slots;
    options.slot_bytes = SlotBytes(plan_);
    return options;
  }

  const End* Post(int r, int peer, Wanted wanted) {
    End& end = ends_.emplace_back();
    end.data.assign(wanted.count, wanted.sends ? static_cast<int32_t>(ends_.size()) : -1);
    Message message;
    message.sends = wanted.sends;
    message.peer = peer;
    message.tag = wanted.tag;
    message.input = ConstBuffer(end.data.data());
    message.output = wanted.output.data != nullptr ? wanted.output : Buffer(end.data.data());
    message.count = wanted.count;
    message.type = DataType::kInt32;
    message.cookie = &end;
    message.timeout = wanted.timeout;
    ranks_[r].Post(message);
    return &end;
  }

  PlanSettings plan_;
  SimWorld world_;
  std::list<End> ends_;
  std::vector<SimMessageRank> ranks_;
};

// The first message has much time, the later ones little; the machine's time stands still meanwhile.
TEST(MessageWaitsSimTest, TheClockOfALargeMessageBeginsWhenTheOneBeforeItHasEnded) {
  for (const int32_t tag : {0, 3}) {
    for (const int asked : {0, kAnyPeer}) {
      SCOPED_TRACE(testing::Message() << "tag " << tag << " asked " << asked);
      Ranks ranks(2);
      std::vector<const End*> ends[2];
      for (int i = 0; i < 5; ++i) {
        const Nanoseconds timeout = i == 0 ? kNever : kSecond;
        ends[0].push_back(ranks.Send(0, 1, tag, 100000, timeout));
        ends[1].push_back(ranks.Receive(1, asked, tag, 100000, timeout));
      }
      int looks[2] = {};
      do {
        ranks.Settle();
        for (int r = 0; r < 2 && !ends[r][0]->is_done; ++r) {
          ++looks[r];
          const Status late = ranks.messages(r).Late(Now() + 100 * kSecond);
          ASSERT_TRUE(late.ok()) << late.ToString();
        }
        if (ends[1][0]->is_done && !ends[1][1]->is_done) break;
      } while (ranks.world().AdvanceToNextEvent());
      EXPECT_GT(looks[0], 5);
      EXPECT_GT(looks[1], 5);
      EXPECT_EQ(ranks.messages(1).Late(Now() + 100 * kSecond).code(), Code::kTimeout) << "the second has no deadline";
      ranks.Run();
      for (int r = 0; r < 2; ++r) {
        EXPECT_TRUE(ranks.status(r).ok()) << ranks.status(r).ToString();
        for (const End* end : ends[r]) EXPECT_TRUE(end->is_done);
      }
    }
  }
}

// The next receive is posted while a large message comes, and the peer never sends that one.
TEST(MessageWaitsSimTest, AReceiveThatIsPostedWhileTheOneBeforeItGoesOnHasADeadlineAfterwards) {
  for (const int32_t tag : {0, 3}) {
    for (const int asked : {0, kAnyPeer}) {
      SCOPED_TRACE(testing::Message() << "tag " << tag << " asked " << asked);
      Ranks ranks(2);
      ranks.Send(0, 1, tag, 100000, kNever);
      const End* const first = ranks.Receive(1, asked, tag, 100000, kNever);
      const End* second = nullptr;
      int looks = 0;
      do {
        ranks.Settle();
        if (first->is_done) break;
        if (++looks == 5) second = ranks.Receive(1, asked, tag, 8, kSecond);  // Some of the first has come.
        ASSERT_TRUE(ranks.messages(1).Late(Now() + 100 * kSecond).ok()) << "the first may take its time";
      } while (ranks.world().AdvanceToNextEvent());
      ASSERT_TRUE(first->is_done && second != nullptr);
      EXPECT_TRUE(ranks.messages(1).Late(Now()).ok());
      const Status late = ranks.messages(1).Late(Now() + 100 * kSecond);
      EXPECT_EQ(late.code(), Code::kTimeout) << "the second has no deadline";
    }
  }
}

// Rank 1 sends more than may be held. Its receiver says so, and what rank 2 sends still comes.
TEST(MessageWaitsSimTest, APeerThatFillsTheRoomHoldsUpItsOwnMessagesAloneAndTheErrorSaysWhy) {
  Ranks ranks(3);
  for (int i = 0; i < 500; ++i) ranks.Send(1, 0, 0, 100);
  ranks.Send(1, 0, 5, 1);
  const End* const wanted = ranks.Receive(0, kAnyPeer, 5, 1, kSecond);
  ranks.Run();
  EXPECT_FALSE(wanted->is_done);
  const Status late = ranks.messages(0).Late(Now() + 100 * kSecond);
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_NE(late.message().find(kNoRoomText), std::string::npos) << late.ToString();
  ranks.Send(2, 0, 4, 1000);
  ranks.Send(2, 0, 5, 1);
  ranks.Run();
  EXPECT_TRUE(wanted->is_done);
  EXPECT_TRUE(ranks.status(0).ok());
}

// A budget that counts both sums counts nothing twice.
TEST(MessageWaitsSimTest, WhatIsHeldIsNoMoreInTheRoomToHold) {
  Ranks ranks(2);
  const End* const wanted = ranks.Receive(0, 1, 5, 1);
  ranks.Settle();
  const Messages& messages = ranks.messages(0);
  const size_t memory = messages.MemoryBytes();
  const size_t most = memory + messages.RoomToHoldBytes();
  for (int i = 0; i < 10; ++i) ranks.Send(1, 0, 0, 100);
  ranks.Run();
  EXPECT_GE(messages.MemoryBytes(), memory + 10 * 100 * sizeof(int32_t));
  EXPECT_EQ(messages.MemoryBytes() + messages.RoomToHoldBytes(), most);
  for (int i = 0; i < 10; ++i) ranks.Receive(0, 1, 0, 100);
  ranks.Send(1, 0, 5, 1);
  ranks.Run();
  EXPECT_TRUE(wanted->is_done);
  EXPECT_EQ(messages.MemoryBytes(), memory);
}

TEST(MessageWaitsSimTest, ASenderThatIsDeafForWantOfRoomSaysSo) {
  Ranks ranks(2);
  for (int i = 0; i < 500; ++i) ranks.Send(1, 0, 0, 100);
  ranks.Receive(0, kAnyPeer, 5, 1);
  ranks.Send(0, 1, 6, 100000, kSecond);
  ranks.Run();
  const Status late = ranks.messages(0).Late(Now() + 100 * kSecond);
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_NE(late.message().find(kNoRoomText), std::string::npos) << late.ToString();
}

TEST(MessageWaitsSimTest, APeerThatBreaksTheProtocolIsNotTakenForOneThatLeft) {
  const auto breaks = [](MessageForm form, int32_t tag, uint64_t number) {
    Ranks ranks(3);
    ranks.Receive(0, kAnyPeer, 5, 1);
    ranks.Settle();
    Endpoint* const endpoint = ranks.link(1, 0);
    Call call;
    call.sequence = number;
    call.kind = CollectiveKind::kSend;
    call.type = DataType::kInt32;
    call.root = tag;
    call.count = 1;
    call.op = static_cast<ReduceOp>(form);
    Send send;
    std::byte* slot = nullptr;
    EXPECT_TRUE(endpoint->AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    send.tag = PackTag(call, {0, 0, static_cast<uint32_t>(ranks.channel())});
    send.data = slot;
    EXPECT_TRUE(endpoint->PostSend(&send).ok());
    do {
      ranks.Settle();
      bool moved = false;
      static_cast<void>(endpoint->Progress(&moved));
    } while (ranks.world().AdvanceToNextEvent());
    EXPECT_EQ(ranks.status(0).code(), Code::kProtocol) << ranks.status(0).ToString();
    EXPECT_EQ(ranks.status(0).peer(), 1);
  };
  breaks(MessageForm::kNotice, 5, 9);   // Not the next number.
  breaks(MessageForm::kNotice, -3, 1);  // No tag.
  breaks(MessageForm::kGrant, 0, 4);    // A grant of what was not offered.
  breaks(MessageForm::kBegin, 0, 4);    // What was not granted begins.
  breaks(static_cast<MessageForm>(5), 0, 1);
}

// The end of its link is seen while copies to the device are under way.
TEST(MessageWaitsSimTest, AMessageThatHasComeWholeNeedsItsLinkNoMore) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Ranks ranks(2, seed);
    const End* const received = ranks.ReceiveOnDevice(0, 1, 10000, seed);
    const End* const sent = ranks.Send(1, 0, 0, 10000);
    do {
      ranks.Settle();
      if (sent->is_done) ranks.Leave(1);
    } while (ranks.world().AdvanceToNextEvent());
    ASSERT_TRUE(ranks.status(0).ok()) << ranks.status(0).ToString();
    ASSERT_TRUE(received->is_done);
  }
}

TEST(MessageWaitsSimTest, APeerThatDiesWithinAMessageThatNobodyAskedForEndsNothing) {
  for (int step = 0; step < 60; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    Ranks ranks(3);
    ranks.world().KillRank(1, step * kMicrosecond);
    const End* const wanted = ranks.Receive(0, kAnyPeer, 5, 1);
    for (int i = 0; i < 3; ++i) ranks.Send(1, 0, 0, 2000);
    ranks.Run();
    ASSERT_TRUE(ranks.status(0).ok()) << ranks.status(0).ToString();
    ranks.Send(2, 0, 5, 1);
    ranks.Run();
    ASSERT_TRUE(ranks.status(0).ok()) << ranks.status(0).ToString();
    ASSERT_TRUE(wanted->is_done);
    ASSERT_FALSE(ranks.messages(0).busy());
  }
}

}  // namespace
}  // namespace annulus
