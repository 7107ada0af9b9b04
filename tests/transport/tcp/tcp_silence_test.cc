// TCP links whose connections fall silent without breaking, as when something on the way has forgotten them: they get
// new connections long before the kernel gives the old ones up, and nothing is lost or comes twice. Each end's socket
// is made to drop what comes for it.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/contract/two_way_stream.h"
#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "transport/tcp/socket/tcp_pulse.h"
#include "transport/tcp/tcp.h"
#include "transport/wire/frame.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 120 * kSecond;
// The kernel gives a connection up after 15 s, or 20 s where nothing is under way.
constexpr Nanoseconds kBeforeTheKernel = 12 * kSecond;

struct Variant {
  const char* name;
  int lanes = 1;
  bool encrypts = false;
};

class TcpSilenceTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::string why;
    network_ = SocketCutter::Create(&why);  // Where this process may set filters.
    if (network_ == nullptr) GTEST_SKIP() << why;
    const TransportLink::MakeTransport make = [](TransportConfig config) {
      config.settings.Set("tcp_sockets", GetParam().lanes);
      config.settings.Set("reconnect_ms", 60'000);
      config.settings.Set("encrypt", GetParam().encrypts);
      return CreateTcpTransport(config);
    };
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = 64 * 1024, .slots = 8});
    ASSERT_NE(link_, nullptr);
    ASSERT_EQ(Connected().size(), 2u * static_cast<size_t>(GetParam().lanes));
  }

  uint64_t Reconnects() { return link_->end(0).stats().reconnects + link_->end(1).stats().reconnects; }

  // Bytes that wait in the sockets of this process.
  static size_t Unread() {
    size_t unread = 0;
    for (const int fd : Connected()) {
      int bytes = 0;
      EXPECT_EQ(ioctl(fd, SIOCINQ, &bytes), 0);
      unread += static_cast<size_t>(bytes);
    }
    return unread;
  }

  void ExpectToGoOn(const Plan& there, const Plan& back) {
    const std::vector<int> sockets = Connected();
    ASSERT_EQ(Silence(sockets), sockets.size());
    const Nanoseconds took = TwoWayStream(link_.get(), there, back, kPatience).Join();
    EXPECT_GE(Reconnects(), 2u) << "one at each end";
    EXPECT_LT(took, kBeforeTheKernel);
    std::printf("went on after %.2f s\n", static_cast<double>(took) / kSecond);
  }

  std::unique_ptr<SocketCutter> network_;
  std::unique_ptr<ContractLink> link_;
};

constexpr Plan kSlices = {.seed = 7, .slices = 20, .max_bytes = 60'000, .window = 4};
constexpr Plan kNone = {.seed = 8, .slices = 0};

// Side 1 has dialled at the start, so it is the one to do so again.
TEST_P(TcpSilenceTest, WhatTheDiallingEndSendsComesOverAnotherConnection) { ExpectToGoOn(kNone, kSlices); }

TEST_P(TcpSilenceTest, WhatTheDiallingEndAwaitsComesOverAnotherConnection) { ExpectToGoOn(kSlices, kNone); }

TEST_P(TcpSilenceTest, WhatGoesBothWaysComesOverAnotherConnection) { ExpectToGoOn(kSlices, kSlices); }

// The receiver's window is closed, and its kernel says so whenever it is asked.
TEST_P(TcpSilenceTest, APeerThatDoesNotReadIsNotSilent) {
  Plan plan = kSlices;
  plan.slices = 2000;
  SliceTalker talker(&link_->end(1), plan);
  for (const Nanoseconds end = Now() + 3 * kSecond; Now() < end;) {
    bool moved = false;
    ASSERT_TRUE(link_->end(1).Progress(&moved).ok());
    moved |= talker.Step();
    if (!moved && link_->end(1).Arm()) link_->reactor(1)->WaitUntil(Now() + 20 * kMillisecond);
    link_->reactor(0)->WaitUntil(Now());
  }
  EXPECT_FALSE(talker.done());
  EXPECT_EQ(Reconnects(), 0u);
}

// Nor does it read what asks whether it is there, so it is asked a few times only; after that its kernel is.
TEST_P(TcpSilenceTest, APeerThatSaysNothingIsNotSilent) {
  SliceListener listener(&link_->end(1), kSlices);
  for (const Nanoseconds end = Now() + 5 * kSecond; Now() < end;) {
    bool moved = false;
    ASSERT_TRUE(link_->end(1).Progress(&moved).ok());
    moved |= listener.Step();
    if (!moved && link_->end(1).Arm()) link_->reactor(1)->WaitUntil(Now() + 20 * kMillisecond);
    link_->reactor(0)->WaitUntil(Now());
  }
  EXPECT_EQ(Reconnects(), 0u);
  EXPECT_GT(Unread(), 0u);
  constexpr size_t kMost = TcpPulse::kMostAsked * kFrameHeaderBytes;
  const size_t sealed = GetParam().encrypts ? 4 * kMost : kMost;
  EXPECT_LE(Unread(), static_cast<size_t>(GetParam().lanes) * sealed);
}

// It waits for others before it sends again; with a connection that was never used it does not count.
TEST_P(TcpSilenceTest, WhoIsToSendNextFindsSilenceBefore) {
  const auto wait = [this] {
    for (const Nanoseconds end = Now() + 3 * kSecond; Now() < end && Reconnects() < 2;) {
      bool moved = false;
      for (int side = 0; side < 2; ++side) ASSERT_TRUE(link_->end(side).Progress(&moved).ok());
      if (!moved && link_->end(1).Arm()) link_->reactor(1)->WaitUntil(Now() + 20 * kMillisecond);
      link_->reactor(0)->WaitUntil(Now());
    }
  };
  wait();
  EXPECT_EQ(Unread(), 0u);
  TwoWayStream(link_.get(), kNone, kSlices, kPatience).Join();
  Silence(Connected());
  wait();
  EXPECT_GE(Reconnects(), 2u);
  TwoWayStream(link_.get(), kNone, kSlices, kPatience).Join();
}

// Some ends go on hearing, so that connections are replaced that are alive. Old ones answer again at any time, also
// while new ones are made; new ones fall silent too.
TEST_P(TcpSilenceTest, NothingIsLostWhereSilencesComeAndGo) {
  std::minstd_rand random(5);
  const uint64_t wanted = Rounds(6, 300);
  Plan plan{.seed = 31, .slices = 400, .max_bytes = 60'000, .window = 6, .gradual = true, .landing = true};
  uint64_t silences = 0;
  while (silences < wanted && !HasFailure()) {
    Plan back = plan;
    back.seed += 1;
    const TwoWayStream stream(link_.get(), plan, back, kPatience);
    while (stream.running() && !HasFailure()) {
      std::vector<int> sockets = Connected();
      if (random() % 2 == 0) std::erase_if(sockets, [&](int) { return random() % 2 == 0; });
      Silence(sockets);
      ++silences;
      for (const Nanoseconds end = Now() + static_cast<Nanoseconds>(random() % 1500) * kMillisecond;
           Now() < end && stream.running();) {
        std::this_thread::yield();
      }
      EndSilence(sockets);
      for (const Nanoseconds end = Now() + static_cast<Nanoseconds>(random() % 4) * kMillisecond; Now() < end;) {
        std::this_thread::yield();
      }
    }
    plan.seed += 2;
  }
  std::printf("%llu silences, %llu reconnects\n", static_cast<unsigned long long>(silences),
              static_cast<unsigned long long>(Reconnects()));
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpSilenceTest,
                         ::testing::Values(Variant{"OneSocket"}, Variant{"ThreeSockets", 3},
                                           Variant{.name = "Encrypted", .lanes = 2, .encrypts = true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
