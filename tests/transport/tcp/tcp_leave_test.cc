// TCP links that one end closes while what it has sent last is not acknowledged, or is lost with its connections: it
// arrives all the same. Nobody waits longer than for that.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;
constexpr int kLongReconnectMs = 60'000;
// A link that owes nothing is closed long before.
constexpr Nanoseconds kSoon = 10 * kSecond;

// Small slices and larger ones, few enough that a kernel takes all of them before the peer's has any.
constexpr Plan kLast{.seed = 7, .slices = 8, .max_bytes = 6000, .window = 8};

struct Variant {
  const char* name;
  int lanes = 1;
  bool encrypts = false;
};

class TcpLeaveTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::string why;
    cutter_ = SocketCutter::Create(&why);
    if (cutter_ == nullptr) GTEST_SKIP() << why;
  }

  void Open(int reconnect_ms) {
    const TransportLink::MakeTransport make = [reconnect_ms](TransportConfig config) {
      config.settings.Set("tcp_sockets", GetParam().lanes);
      config.settings.Set("reconnect_ms", reconnect_ms);
      config.settings.Set("encrypt", GetParam().encrypts);
      return CreateTcpTransport(config);
    };
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = 64 * 1024, .slots = 8});
    ASSERT_NE(link_, nullptr);
  }

  // Has `side` send slices of which nothing arrives.
  void SendIntoSilence(int side, const Plan& plan = kLast) {
    const std::vector<int> sockets = Connected();
    ASSERT_EQ(Silence(sockets), sockets.size());
    SliceTalker talker(&link_->end(side), plan);
    const Deadline deadline = DeadlineAfter(kPatience);
    while (!talker.done()) {
      ASSERT_LT(Now(), deadline);
      ASSERT_TRUE(Progress(side).ok());
      talker.Step();
    }
  }
  // Kernels may put that off.
  static void AwaitAcknowledgements() {
    const std::vector<int> sockets = Connected();
    const Deadline deadline = DeadlineAfter(kPatience);
    const auto has_some = [](int fd) {
      int bytes = 0;
      return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
    };
    while (std::any_of(sockets.begin(), sockets.end(), has_some)) ASSERT_LT(Now(), deadline);
  }
  void CutAll() {
    for (const SocketCutter::End& end : cutter_->Ends()) cutter_->Cut(end);
  }
  Status Progress(int side) {
    bool moved = false;
    const Status status = link_->end(side).Progress(&moved);
    if (status.ok() && !moved && link_->end(side).Arm()) link_->reactor(side)->WaitUntil(Now() + kMillisecond);
    return status;
  }

  // It gives slots back when it likes.
  static bool HasReceivedAll(SliceListener* listener) {
    for (int turn = 0; turn < 1000 && !listener->done(); ++turn) listener->Step();
    return listener->done();
  }

  // Closes `side` while the other end receives what it has sent. Then that end hears of the end, too; but where there
  // are several lanes, one on which nothing was sent may have lost the end alone, and nobody waits long for that.
  void ExpectToArrive(int side, const Plan& plan = kLast) {
    const int other = 1 - side;
    SliceListener listener(&link_->end(other), plan);
    const Deadline deadline = DeadlineAfter(kPatience);
    bool closed = false;
    for (Status status; !closed || !listener.done() || (GetParam().lanes == 1 && status.ok());) {
      ASSERT_LT(Now(), deadline) << "closed: " << closed << ", all received: " << listener.done();
      closed = link_->end(side).Close();
      EXPECT_FALSE(closed && link_->end(other).stats().reconnects == 0) << "nothing can have arrived";
      if (status.ok()) status = Progress(other);
      if (!listener.done()) listener.Step();
      ASSERT_FALSE(HasFailure());
      ASSERT_TRUE(status.ok() || HasReceivedAll(&listener)) << status.ToString();
      EXPECT_TRUE(status.ok() || Mentions(status, "closed its connection")) << status.ToString();
    }
    EXPECT_GT(link_->end(side).stats().bytes_sent_again, 0u);
  }

  // Returns how long it took.
  Nanoseconds CloseWhileTheOtherDoesNothing(int side) {
    const Nanoseconds begin = Now();
    CloseWholly(link_->end(side));
    return Now() - begin;
  }

  std::unique_ptr<SocketCutter> cutter_;
  std::unique_ptr<ContractLink> link_;
};

TEST_P(TcpLeaveTest, WhatIsLostWithTheConnectionsIsSentAgain) {
  for (const int side : {0, 1}) {
    Open(kLongReconnectMs);
    SendIntoSilence(side);
    CutAll();
    ExpectToArrive(side);
  }
}

TEST_P(TcpLeaveTest, AlsoIfTheyBreakAfterTheEndIsWritten) {
  for (const int side : {0, 1}) {
    Open(kLongReconnectMs);
    SendIntoSilence(side);
    EXPECT_FALSE(link_->end(side).Close());
    CutAll();
    ExpectToArrive(side);
  }
}

TEST_P(TcpLeaveTest, WhatConnectionsDoNotDeliverThatFellSilentIsSentAgain) {
  for (const int side : {0, 1}) {
    Open(kLongReconnectMs);
    SendIntoSilence(side);
    ExpectToArrive(side);
  }
}

TEST_P(TcpLeaveTest, EndsThatLeaveAtOnceDoNotWaitForEachOther) {
  Open(kLongReconnectMs);
  for (const int side : {0, 1}) SendIntoSilence(side);
  CutAll();
  const Nanoseconds begin = Now();
  for (bool closed = false; !closed && Now() < begin + kSoon;) {
    closed = link_->end(0).Close();
    closed &= link_->end(1).Close();
  }
  EXPECT_LT(Now() - begin, kSoon);
}

TEST_P(TcpLeaveTest, WhoOwesNothingWaitsForNobody) {
  for (const bool is_cut : {false, true}) {
    for (const int side : {0, 1}) {
      Open(kLongReconnectMs);
      SliceTalker talker(&link_->end(side), kLast);
      SliceListener listener(&link_->end(1 - side), kLast);
      const Deadline deadline = DeadlineAfter(kPatience);
      while (!talker.done() || !listener.done()) {
        ASSERT_LT(Now(), deadline);
        for (const int each : {0, 1}) ASSERT_TRUE(Progress(each).ok());
        talker.Step();
        listener.Step();
      }
      AwaitAcknowledgements();
      if (is_cut) CutAll();
      EXPECT_LT(CloseWhileTheOtherDoesNothing(side), kSoon);
      EXPECT_EQ(link_->end(side).stats().reconnects, 0u);
    }
  }
}

// The peer's rank has ended the link, so it needs nothing more. It says so to who dials.
TEST_P(TcpLeaveTest, WhoHasEndedTheLinkIsNotWaitedFor) {
  Open(kLongReconnectMs);
  SendIntoSilence(1);
  CutAll();
  CloseWholly(link_->end(0));
  const Nanoseconds begin = Now();
  while (!link_->end(1).Close() && Now() < begin + kSoon) link_->reactor(0)->WaitUntil(Now());
  EXPECT_LT(Now() - begin, kSoon);
}

TEST_P(TcpLeaveTest, WhoDoesNotComeBackIsWaitedForAsLongAsAConnectionMayBeAway) {
  constexpr int kReconnectMs = 500;
  for (const int side : {0, 1}) {
    Open(kReconnectMs);
    SendIntoSilence(side);
    link_->Sever(1 - side);
    CutAll();
    const Nanoseconds took = CloseWhileTheOtherDoesNothing(side);
    EXPECT_GE(took, kReconnectMs * kMillisecond);
    EXPECT_LT(took, kSoon);
  }
}

// Each lane ends, breaks and is made again at its own time.
TEST_P(TcpLeaveTest, NothingIsLostUnderResets) {
  std::minstd_rand random(11);
  const int rounds = static_cast<int>(Rounds(GetParam().encrypts ? 10 : 20, 2000));
  int cuts = 0;
  uint64_t reconnects = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    Open(kLongReconnectMs);
    const int side = round % 2;
    const Plan plan{.seed = 100 + random() % 1000, .slices = 12, .max_bytes = 60'000, .window = 8};
    SliceTalker talker(&link_->end(side), plan);
    SliceListener listener(&link_->end(1 - side), plan);
    const Deadline deadline = DeadlineAfter(kPatience);
    int left = 3;  // So few that there is time in between.
    bool closed = false;
    for (Status status; !closed || !listener.done();) {
      ASSERT_LT(Now(), deadline) << "round " << round << ", closed: " << closed << ", all sent: " << talker.done()
                                 << ", all received: " << listener.done();
      if (!talker.done()) {
        (void)Progress(side);
        talker.Step();
      } else {
        closed = link_->end(side).Close();
        link_->reactor(side)->WaitUntil(Now());
      }
      // It is slow, so that much is on its way when the other end leaves.
      if (status.ok() && random() % 3 == 0) status = Progress(1 - side);
      if (random() % 3 == 0 && !listener.done()) listener.Step();
      if (left > 0 && random() % 15 == 0 && cutter_->CutAny(&random)) --left, ++cuts;
      ASSERT_FALSE(HasFailure()) << "round " << round;
      ASSERT_TRUE(status.ok() || HasReceivedAll(&listener)) << status.ToString();
    }
    reconnects += link_->end(side).stats().reconnects;
  }
  EXPECT_GT(reconnects, 0u);
  std::printf("%d resets, %llu connections made again\n", cuts, static_cast<unsigned long long>(reconnects));
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpLeaveTest,
                         ::testing::Values(Variant{"OneSocket"}, Variant{"ThreeSockets", 3},
                                           Variant{.name = "Encrypted", .encrypts = true},
                                           Variant{.name = "EncryptedOfThree", .lanes = 3, .encrypts = true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
