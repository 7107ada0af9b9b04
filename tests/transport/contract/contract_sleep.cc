// Contract tests of sleeping: Arm() and the reactor never lose a wake-up.
//
// Threads: the last three tests drive each end from a thread of its own.
#include <gtest/gtest.h>

#include <thread>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_fixture.h"

namespace annulus {
namespace {

// Arms `side` after draining it, as a waiting rank does. False when it may not sleep within reason.
template <class DriveOnce>
bool ArmWhenQuiet(Endpoint& endpoint, Deadline deadline, DriveOnce drive) {
  while (!endpoint.Arm()) {
    if (Now() > deadline) return false;
    drive();
  }
  return true;
}

TEST_P(EndpointContract, AQuietLinkLetsItsOwnerSleep) {
  ASSERT_NE(MustRecv(1), nullptr);
  SomeRounds();
  Reactor* reactor = link_->reactor(1);
  for (int early = 0; early < 50; ++early) {  // Stray wake-ups are allowed, a busy loop is not.
    ASSERT_TRUE(ArmWhenQuiet(end(1), deadline_, [&] { Progress(1); }));
    if (reactor == nullptr) return;
    const Deadline until = DeadlineAfter(20 * kMillisecond);
    reactor->WaitUntil(until);
    if (Now() >= until) return;
    Progress(1);
  }
  ADD_FAILURE() << "the reactor never lets an idle rank sleep";
}

TEST_P(EndpointContract, NobodySleepsOverWhatIsAlreadyThere) {
  Recv* recv = MustRecv(1);
  Send* send = MustSend(0, SmallPlan(), 0, 100);
  ASSERT_TRUE(recv != nullptr && send != nullptr);
  while (send->code == Code::kInProgress) {
    ASSERT_FALSE(Expired());
    if (!Progress(0)) link_->Pass();
  }
  while (recv->code == Code::kInProgress) {
    ASSERT_TRUE(!end(1).Arm() || WaitForWake(1)) << "slept over a slice";
    Progress(1);
  }
  ReleaseIfHeld(1, recv);
}

TEST_P(EndpointContract, ASliceWakesAnArmedReceiver) {
  for (int i = 0; i < 20; ++i) {
    Recv* recv = MustRecv(1);
    ASSERT_NE(recv, nullptr);
    ASSERT_TRUE(ArmWhenQuiet(end(1), deadline_, [&] { Round(); }));
    ASSERT_TRUE(end(1).Arm() || Progress(1)) << "arming twice is harmless";
    Send* send = MustSend(0, SmallPlan(), i, 50);
    ASSERT_NE(send, nullptr);
    while (send->code == Code::kInProgress) {
      ASSERT_FALSE(Expired());
      if (!Progress(0)) link_->Pass();
    }
    while (recv->code == Code::kInProgress) {
      ASSERT_TRUE(!end(1).Arm() || WaitForWake(1)) << "a wake-up was lost";
      Progress(1);
    }
    ReleaseIfHeld(1, recv);
  }
}

TEST_P(EndpointContract, ThePeersCloseWakesAnArmedReceiver) {
  Recv* recv = MustRecv(1);
  ASSERT_NE(recv, nullptr);
  ASSERT_TRUE(ArmWhenQuiet(end(1), deadline_, [&] { Round(); }));
  CloseWholly(end(0));
  while (recv->code == Code::kInProgress) {
    ASSERT_TRUE(!end(1).Arm() || WaitForWake(1)) << "slept over the peer's close";
    Progress(1);
  }
  EXPECT_EQ(recv->code, Code::kPeerLost);
}

TEST_P(EndpointContract, ThePeersDeathWakesAnArmedReceiver) {
  Recv* recv = MustRecv(1);
  ASSERT_NE(recv, nullptr);
  ASSERT_TRUE(ArmWhenQuiet(end(1), deadline_, [&] { Round(); }));
  Sever(0);
  while (recv->code == Code::kInProgress) {
    ASSERT_TRUE(!end(1).Arm() || WaitForWake(1)) << "slept over the peer's death";
    Progress(1);
  }
  EXPECT_EQ(recv->code, Code::kPeerLost);
}

TEST_P(EndpointContract, ALinkMayEndWhileItIsArmed) {
  ASSERT_TRUE(ArmWhenQuiet(end(0), deadline_, [&] { Round(); }));
  ASSERT_TRUE(ArmWhenQuiet(end(1), deadline_, [&] { Round(); }));
  CloseWholly(end(0));
  Sever(1);
  for (int side = 0; side < 2; ++side) {
    if (link_->reactor(side) != nullptr) link_->reactor(side)->WaitUntil(DeadlineAfter(kMillisecond));
  }
}

// Drives one end as a rank does that has nothing else to do: sleep whenever nothing moves.
template <class Step, class Done>
void DriveAsleep(Endpoint& endpoint, Reactor& reactor, Deadline deadline, Step step, Done done) {
  while (!done()) {
    bool moved = false;
    const Status status = endpoint.Progress(&moved);
    if (!status.ok()) {
      ADD_FAILURE() << status.ToString();
      return;
    }
    if (step() || moved || !endpoint.Arm()) continue;
    reactor.WaitUntil(deadline);
    if (Now() > deadline) {
      ADD_FAILURE() << "rank " << 1 - endpoint.peer() << " slept past its deadline";
      return;
    }
  }
}

TEST_P(EndpointContract, RoomForMoreWakesAnArmedSender) {
  if (link_->reactor(0) == nullptr) GTEST_SKIP() << "virtual time: nobody sleeps";
  const size_t count = Saturate(end(0), &sends_, deadline_).size();
  ASSERT_GT(count, 0u);
  std::thread receiver([&] {
    for (size_t received = 0; received < count;) {
      if (Expired()) return;
      Recv* recv = MustRecv(1);
      while (recv != nullptr && recv->code == Code::kInProgress && !Expired()) Progress(1);
      if (recv != nullptr && recv->code == Code::kOk) ++received;
      if (recv != nullptr) ReleaseIfHeld(1, recv);
    }
  });
  std::byte* slot = nullptr;
  auto step = [&] { return slot == nullptr && end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok(); };
  auto done = [&] { return slot != nullptr && sends_[count - 1].code == Code::kOk; };
  DriveAsleep(end(0), *link_->reactor(0), deadline_, step, done);
  receiver.join();
  EXPECT_TRUE(done());
}

TEST_P(EndpointContract, TwoSleepersPlayPingPong) {
  if (link_->reactor(0) == nullptr) GTEST_SKIP() << "virtual time: nobody sleeps";
  // A window of 1 on both sides: every slice waits for the one before it to be echoed.
  constexpr int kSlices = kSanitized ? 80 : 300;
  const Plan ping{.seed = 41, .slices = kSlices, .max_bytes = 64, .window = 1};
  auto play = [&](int side) {
    Endpoint& endpoint = end(side);
    int turns = 0;
    Send send;
    Recv recv;
    std::byte* slot = nullptr;
    bool sending = side == 0;
    bool posted = false;
    auto step = [&] {
      if (posted && (sending ? send.code : recv.code) == Code::kInProgress) return false;
      if (posted) {
        if (!sending && recv.data != recv.landing) endpoint.Release(&recv);
        sending = !sending;
        posted = false;
        ++turns;
        return true;
      }
      if (sending) {
        if (slot == nullptr && !endpoint.AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) return false;
        send = Send();
        send.tag = ping.TagOf(turns);
        send.data = slot;
        send.bytes = send.ready = 8;
        posted = endpoint.PostSend(&send).ok();
        if (posted) slot = nullptr;
      } else {
        recv = Recv();
        recv.capacity = 64;
        posted = endpoint.PostRecv(&recv).ok();
      }
      return posted;
    };
    DriveAsleep(endpoint, *link_->reactor(side), deadline_, step, [&] { return turns == 2 * kSlices; });
    EXPECT_EQ(turns, 2 * kSlices);
    if (turns != 2 * kSlices) CloseWholly(endpoint);  // Request and slot are this frame's.
  };
  std::thread other(play, 1);
  play(0);
  other.join();
}

TEST_P(EndpointContract, TwoSleepersStreamBothWays) {
  if (link_->reactor(0) == nullptr) GTEST_SKIP() << "virtual time: nobody sleeps";
  ASSERT_TRUE(Open({.slot_bytes = 16384, .slots = 3}));
  Plan plans[2];
  for (int side = 0; side < 2; ++side) {
    plans[side] = {.seed = 51u + side,
                   .slices = kSanitized ? 150 : 600,
                   .max_bytes = 16384,
                   .window = 5,
                   .gradual = side == 0,
                   .landing = true};
  }
  for (int side = 0; side < 2; ++side) {
    NewTalker(side, plans[side]);
    NewListener(side, plans[1 - side]);
  }
  auto play = [&](int side) {
    SliceTalker& talker = talkers_[side];
    SliceListener& listener = listeners_[side];
    // Both must run: one may be what the other waits for.
    auto step = [&] { return static_cast<int>(talker.Step()) + static_cast<int>(listener.Step()) != 0; };
    auto done = [&] { return (talker.done() && listener.done()) || talker.broken() || listener.broken(); };
    DriveAsleep(end(side), *link_->reactor(side), deadline_, step, done);
  };
  std::thread other(play, 1);
  play(0);
  other.join();
}

}  // namespace
}  // namespace annulus
