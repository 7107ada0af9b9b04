// TCP links whose connections are reset while data moves: they are made again, and the streams go on at the byte where
// they stopped.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/contract/two_way_stream.h"
#include "tests/transport/tcp/send_buffer.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/repair/tcp_redial.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 120 * kSecond;

struct Variant {
  const char* name;
  int lanes = 1;
  bool checksum = false;
  const char* host = "127.0.0.1";
  bool encrypts = false;
};

class TcpRepairTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::string why;
    cutter_ = SocketCutter::Create(&why);
    if (cutter_ == nullptr) GTEST_SKIP() << why;
  }

  void Open(const LinkOptions& options, int reconnect_ms = 60'000) {
    const TransportLink::MakeTransport make = [reconnect_ms](TransportConfig config) {
      config.settings.Set("tcp_sockets", GetParam().lanes);
      config.settings.Set("checksum", GetParam().checksum);
      config.settings.Set("reconnect_ms", reconnect_ms);
      config.settings.Set("encrypt", GetParam().encrypts);
      config.local_host = GetParam().host;
      return CreateTcpTransport(config);
    };
    link_ = TransportLink::Open(make, nullptr, options);
    ASSERT_NE(link_, nullptr);
    connections_ = cutter_->Ends().size() / 2;
    ASSERT_EQ(connections_, static_cast<size_t>(GetParam().lanes));
  }

  // Slices go both ways. Meanwhile connections are reset, at random, but where they encrypt, ever
  // more slowly while none gets into use. Returns how many were.
  int StreamThroughCuts(const Plan& plan, std::minstd_rand* random) {
    Plan back = plan;
    back.seed += 1;
    TwoWayStream stream(link_.get(), plan, back, kPatience);
    int cuts = 0;
    int slowness = 1;
    for (uint64_t reconnects = Sum().reconnects; stream.running() && !HasFailure();) {
      if (cutter_->CutAny(random)) ++cuts;
      poll(nullptr, 0, static_cast<int>((*random)() % 8) * slowness);
      const bool in_use = Sum().reconnects > std::exchange(reconnects, Sum().reconnects);
      slowness = in_use || !GetParam().encrypts ? 1 : std::min(slowness * 2, 64);
    }
    return cuts;
  }

  EndpointStats Sum() const {
    EndpointStats sum;
    for (const int side : {0, 1}) {
      const EndpointStats stats = link_->end(side).stats();
      sum.reconnects += stats.reconnects;
      sum.bytes_sent_again += stats.bytes_sent_again;
    }
    return sum;
  }

  std::unique_ptr<SocketCutter> cutter_;
  std::unique_ptr<ContractLink> link_;
  size_t connections_ = 0;
};

TEST_P(TcpRepairTest, StreamsGoOnThroughResets) {
  Open({.slot_bytes = 256 * 1024, .slots = 8});
  const uint64_t wanted = Rounds(40, 2500);
  std::minstd_rand random(3);
  Plan plan{.seed = 71,
            .slices = kSanitized ? 50 : 150,
            .max_bytes = 256 * 1024,
            .window = 6,
            .gradual = true,
            .landing = true};
  for (uint64_t cuts = 0; cuts < wanted && !HasFailure(); plan.seed += 2) cuts += StreamThroughCuts(plan, &random);
  EXPECT_GT(Sum().reconnects, wanted / 4) << "a connection may be reset before it is in use";
  EXPECT_LE(Sum().bytes_sent_again, Sum().reconnects * MostUnacknowledged());
}

TEST_P(TcpRepairTest, SmallSlicesGoOnThroughResets) {
  Open({.slot_bytes = 4096, .slots = 4});
  const uint64_t wanted = Rounds(20, 1000);
  std::minstd_rand random(4);
  Plan plan{.seed = 1071, .slices = kSanitized ? 1000 : 3000, .max_bytes = 100, .window = 16};
  for (uint64_t cuts = 0; cuts < wanted && !HasFailure(); plan.seed += 2) cuts += StreamThroughCuts(plan, &random);
  EXPECT_GT(Sum().reconnects, 0u);
}

// One end is in its reactor only, as while it computes; the other one goes on over a new connection, and that breaks
// too.
TEST_P(TcpRepairTest, WhatCameOverAConnectionThatWasNeverUsedIsNotLost) {
  Open({.slot_bytes = 256 * 1024, .slots = 8});
  const Plan there{.seed = 15, .slices = 60, .max_bytes = 64 * 1024, .window = 6};
  const Plan back{.seed = 16, .slices = 60, .max_bytes = 64 * 1024, .window = 6};
  std::unique_ptr<SliceTalker> talkers[2];
  std::unique_ptr<SliceListener> listeners[2];
  for (const int side : {0, 1}) {
    talkers[side] = std::make_unique<SliceTalker>(&link_->end(side), side == 0 ? back : there);
    listeners[side] = std::make_unique<SliceListener>(&link_->end(side), side == 0 ? there : back);
  }
  const auto step = [&](int side) {
    bool moved = false;
    const Status status = link_->end(side).Progress(&moved);
    EXPECT_TRUE(status.ok()) << status.ToString();
    talkers[side]->Step();
    listeners[side]->Step();
  };
  const Deadline deadline = DeadlineAfter(kPatience);
  for (uint64_t round = 1; round <= 4; ++round) {
    for (const SocketCutter::End& end : cutter_->Ends()) cutter_->Cut(end);
    // It sends for a while after it went on, and hears that this has arrived.
    for (int steps = 0; steps < 50 && Now() < deadline && !HasFailure();) {
      step(1);
      link_->reactor(0)->WaitUntil(Now() + kMillisecond);
      if (link_->end(1).stats().reconnects >= round * connections_) ++steps;
    }
  }
  const auto done = [&](int side) { return talkers[side]->done() && listeners[side]->done(); };
  while (!(done(0) && done(1)) && !HasFailure()) {
    for (const int side : {0, 1}) step(side);
    ASSERT_LT(Now(), deadline);
  }
}

// Nobody drives the link meanwhile, as between two collectives.
TEST_P(TcpRepairTest, AQuietLinkThatIsResetGoesOn) {
  Open({});
  const uint64_t rounds = Rounds(5, 500);
  std::vector<Nanoseconds> times;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (const SocketCutter::End& end : cutter_->Ends()) cutter_->Cut(end);
    const Plan there{.seed = 5, .slices = 20}, back{.seed = 6, .slices = 20};
    times.push_back(TwoWayStream(link_.get(), there, back, kPatience).Join());
    ASSERT_FALSE(HasFailure());
    // The last of several connections may still be under way.
    EXPECT_GE(Sum().reconnects, 2 * (round + 1));
    EXPECT_LE(Sum().bytes_sent_again, Sum().reconnects * MostUnacknowledged());
  }
  std::sort(times.begin(), times.end());
  std::printf("%zu resets: the link went on after %.2f ms (median), %.2f ms (99 %%), %.2f ms (longest)\n", times.size(),
              static_cast<double>(times[times.size() / 2]) / kMillisecond,
              static_cast<double>(times[times.size() * 99 / 100]) / kMillisecond,
              static_cast<double>(times.back()) / kMillisecond);
}

// The end that dials gives up; nobody tells the other one here that its peer has gone.
TEST_P(TcpRepairTest, WhoDoesNotComeBackIsLostWhenTimeIsUp) {
  Open({}, 300);
  // The reset comes first, so the end of the other process cannot be told from a broken path.
  for (const SocketCutter::End& end : cutter_->Ends()) cutter_->Cut(end);
  link_->Sever(0);
  const Nanoseconds begin = Now();
  Status status;
  bool moved = false;
  while (status.ok() && Now() < begin + kPatience) {
    status = link_->end(1).Progress(&moved);
    if (status.ok() && link_->end(1).Arm()) link_->reactor(1)->WaitUntil(begin + kPatience);
  }
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 0);
  EXPECT_TRUE(Mentions(status, "rank 0 was lost")) << status.message();
  EXPECT_GE(Now() - begin, 300 * kMillisecond);
  EXPECT_LT(Now() - begin, kPatience / 2);
}

// Ranks between calls repair nothing. The one that waits in a call meanwhile may be the one that cannot dial.
TEST_P(TcpRepairTest, WhoComputesForLongerThanAConnectionMayBeAwayIsWaitedFor) {
  constexpr int kLimitMs = 300;
  Open({}, kLimitMs);
  for (const int waits : {0, 1}) {
    SCOPED_TRACE(testing::Message() << "rank " << waits << " waits");
    for (const SocketCutter::End& end : cutter_->Ends()) cutter_->Cut(end);
    const Deadline enough = DeadlineAfter(3 * kLimitMs * kMillisecond);
    while (Now() < enough) {
      bool moved = false;
      ASSERT_TRUE(link_->end(waits).Progress(&moved).ok());
      if (link_->end(waits).Arm()) link_->reactor(waits)->WaitUntil(enough);
    }
    const Plan there{.seed = 5, .slices = 20}, back{.seed = 6, .slices = 20};
    TwoWayStream(link_.get(), there, back, kPatience).Join();
    ASSERT_FALSE(HasFailure());
  }
}

TEST(TcpRedialTest, AttemptsLastLongerOnLongPathsAndEveryFourthForSlowOnes) {
  EXPECT_EQ(AttemptTime(1, 0), 250 * kMillisecond);
  EXPECT_EQ(AttemptTime(2, 10 * kMillisecond), 250 * kMillisecond);
  EXPECT_EQ(AttemptTime(3, 300 * kMillisecond), 1200 * kMillisecond);
  EXPECT_EQ(AttemptTime(4, 0), kSecond);
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpRepairTest,
                         ::testing::Values(Variant{"OneSocket"}, Variant{"ThreeSockets", 3},
                                           Variant{"Checksummed", 2, true}, Variant{"Ipv6", 2, false, "::1"},
                                           Variant{.name = "Encrypted", .encrypts = true},
                                           Variant{.name = "EncryptedOfThree", .lanes = 3, .encrypts = true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
