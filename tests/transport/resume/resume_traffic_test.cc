// Traffic over links that go on over TCP: a request fails at any moment, with any status, at either end or at both, the
// device fails, or its peer does not come back. What was sent arrives once, in order and unharmed, or both ends tell.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/resume/resuming_transport.h"
#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

constexpr int kReconnectMs = 20'000;

constexpr ibv_wc_status kFailures[] = {
    IBV_WC_LOC_LEN_ERR,     IBV_WC_LOC_QP_OP_ERR,     IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,    IBV_WC_REM_OP_ERR,   IBV_WC_RETRY_EXC_ERR,
    IBV_WC_FATAL_ERR,       IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_GENERAL_ERR,
};

// `read_bytes`: smallest slice of registered memory that is read; 0: none.
std::unique_ptr<ContractLink> OpenLink(const LinkOptions& options, int reconnect_ms = kReconnectMs, int rails = 1,
                                       int64_t read_bytes = 0) {
  constexpr const char* kPorts[] = {"sim0", "sim0,sim1", "sim0,sim1,sim2"};
  SimulatedVerbs::SetMachine({.devices = rails});
  const auto make = [reconnect_ms, read_bytes, ports = std::string(kPorts[rails - 1])](TransportConfig config) {
    config.settings.Set("verbs_device", ports);
    config.settings.Set("verbs_read_bytes", read_bytes);
    return std::make_unique<ResumingTransport>(std::move(config), reconnect_ms);
  };
  return TransportLink::Open(make, nullptr, options);
}

// One thread drives both ends, in a random order, until all that both send has come.
class Conversation {
 public:
  Conversation(ContractLink* link, const Plan& there, const Plan& back) : link_(link), random_(there.seed) {
    talkers_[0] = std::make_unique<SliceTalker>(&link->end(0), there);
    talkers_[1] = std::make_unique<SliceTalker>(&link->end(1), back);
    listeners_[0] = std::make_unique<SliceListener>(&link->end(0), back);
    listeners_[1] = std::make_unique<SliceListener>(&link->end(1), there);
  }

  void Step() {
    bool moved = false;
    for (const int side : {0, 1}) {
      if (random_() % 8 == 0) continue;
      const Status status = link_->end(side).Progress(&moved);
      ASSERT_TRUE(status.ok()) << "side " << side << ": " << status.ToString();
      moved |= talkers_[side]->Step();
      moved |= listeners_[side]->Step();
    }
    if (!moved) link_->Pass();
  }
  bool done() const {
    return talkers_[0]->done() && talkers_[1]->done() && listeners_[0]->done() && listeners_[1]->done();
  }
  void Run() {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!done() && !testing::Test::HasFailure()) {
      Step();
      ASSERT_LT(Now(), deadline) << "a hang";
    }
  }

 private:
  ContractLink* const link_;
  std::mt19937_64 random_;
  std::array<std::unique_ptr<SliceTalker>, 2> talkers_;
  std::array<std::unique_ptr<SliceListener>, 2> listeners_;
};

class ResumeTrafficTest : public ::testing::Test {
 protected:
  ~ResumeTrafficTest() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  static Plan PlanOf(uint64_t seed) {
    Plan plan;
    plan.seed = 2 * seed;
    plan.slices = 60;
    plan.max_bytes = seed % 4 == 0 ? 150 : 4096;
    plan.window = seed % 2 == 0 ? 3 : 8;
    plan.gradual = seed % 3 != 0;
    plan.landing = seed / 2 % 2 == 0;
    return plan;
  }
};

// Most links read slices, of most sizes or only of large ones.
int64_t ReadBytes(uint64_t seed) { return seed / 3 % 3 == 0 ? 0 : seed / 3 % 3 == 1 ? 200 : 2000; }

TEST_F(ResumeTrafficTest, NothingIsLostWhateverRequestFails) {
  uint64_t reconnects = 0;
  uint64_t again = 0;
  const uint64_t rounds = Rounds(200, 20'000);
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    const auto link = OpenLink({.slot_bytes = 4096, .slots = 1 + static_cast<int>(seed % 12)}, kReconnectMs,
                               1 + static_cast<int>(seed / 12 % 3), ReadBytes(seed));
    ASSERT_NE(link, nullptr);
    const Plan there = PlanOf(seed);
    Plan back = there;
    back.seed += 1;
    if (seed % 5 == 0) back.slices = 0;
    SimulatedVerbs::FailAfter(random() % 150, kFailures[random() % std::size(kFailures)]);
    Conversation(link.get(), there, back).Run();
    if (HasFailure()) return;
    for (const int side : {0, 1}) {
      reconnects += link->end(side).stats().reconnects;
      again += link->end(side).stats().bytes_sent_again;
    }
    // Both may close while what they have completed is not acknowledged.
    for (const int side : {0, 1}) (void)link->end(side).Close();
  }
  EXPECT_GT(reconnects, rounds) << "two for each failure";
  std::printf("%llu links went on, %llu bytes were sent again\n", static_cast<unsigned long long>(reconnects / 2),
              static_cast<unsigned long long>(again));
}

// All devices, or one.
TEST_F(ResumeTrafficTest, NothingIsLostWhenTheDeviceFails) {
  for (uint64_t seed = 1; seed <= Rounds(60, 2000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    const int rails = 1 + static_cast<int>(seed / 4 % 3);
    const auto link = OpenLink({.slot_bytes = 4096, .slots = 3}, kReconnectMs, rails, ReadBytes(seed));
    ASSERT_NE(link, nullptr);
    const Plan there = PlanOf(seed);
    Plan back = there;
    back.seed += 1;
    Conversation conversation(link.get(), there, back);
    for (uint64_t i = 0; i < seed % 40 && !HasFailure(); ++i) conversation.Step();
    if (seed % 4 == 0) SimulatedVerbs::RaiseEvent(IBV_EVENT_DEVICE_FATAL);
    if (seed % 4 == 1) SimulatedVerbs::FailPairs();
    if (seed % 4 > 1) SimulatedVerbs::FailPairs(static_cast<int>(seed / 12) % rails);
    conversation.Run();
    if (HasFailure()) return;
    for (const int side : {0, 1}) (void)link->end(side).Close();
  }
}

// Small slices go until the peer has no receive left and all slots are in use. Then the peer takes them, or the links
// go on over TCP first.
TEST_F(ResumeTrafficTest, SmallSlicesThatNobodyTakesAreKept) {
  for (int i = 0; i < 2 * kMostVerbsSlots; ++i) {
    if (kSanitized && i / 2 % 11 != 0) continue;
    const int slots = 1 + i / 2;
    const bool fails = i % 2 == 1;
    SCOPED_TRACE(std::to_string(slots) + " slots" + (fails ? ", failing" : ""));
    SimulatedVerbs::Seed(static_cast<uint64_t>(i));
    const auto link = OpenLink({.slot_bytes = 4096, .slots = slots});
    ASSERT_NE(link, nullptr);
    Plan plan;
    plan.seed = static_cast<uint64_t>(i);
    plan.slices = 12 * slots + 64;
    plan.max_bytes = 150;
    plan.window = std::max(8, slots);
    SliceTalker talker(&link->end(0), plan);
    SliceListener listener(&link->end(1), plan);
    const auto step = [&](bool listens) {
      bool moved = false;
      for (const int side : {0, 1}) ASSERT_TRUE(link->end(side).Progress(&moved).ok());
      moved |= talker.Step();
      if (listens) moved |= listener.Step();
      if (!moved) link->Pass();
    };
    // Two receives are left for updates.
    const int most = static_cast<int>(VerbsQueueDepth(slots)) - 2 + slots;
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (talker.posted() < most && Now() < deadline && !HasFailure()) step(false);
    ASSERT_EQ(talker.posted(), most);
    if (fails) SimulatedVerbs::FailPairs();
    while (!(talker.done() && listener.done()) && Now() < deadline && !HasFailure()) step(true);
    ASSERT_TRUE(talker.done() && listener.done() && !HasFailure());
    EXPECT_EQ(link->end(0).stats().reconnects, fails ? 1u : 0u);
  }
}

// One end does nothing while the other goes on, as while its rank computes.
TEST_F(ResumeTrafficTest, AnEndThatComputesIsAwaited) {
  const auto link = OpenLink({.slot_bytes = 4096, .slots = 3}, 100);
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::FailPairs();
  Recv recv;
  recv.capacity = 4096;
  ASSERT_TRUE(link->end(0).PostRecv(&recv).ok());
  bool moved = false;
  for (const Deadline end = DeadlineAfter(500 * kMillisecond); Now() < end;) {
    const Status status = link->end(0).Progress(&moved);
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (link->end(0).Arm()) link->reactor(0)->WaitUntil(end);
  }
  std::byte* slot = nullptr;
  ASSERT_TRUE(link->end(1).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send send;
  send.data = slot;
  send.bytes = send.ready = 1000;
  ASSERT_TRUE(link->end(1).PostSend(&send).ok());
  for (const Deadline end = DeadlineAfter(kContractPatience); recv.code == Code::kInProgress && Now() < end;) {
    for (const int side : {0, 1}) ASSERT_TRUE(link->end(side).Progress(&moved).ok());
  }
  EXPECT_EQ(recv.code, Code::kOk);
  link->end(0).Release(&recv);
}

// Its device fails, and then its process dies: both links are gone.
TEST_F(ResumeTrafficTest, APeerThatDiesMeanwhileIsLost) {
  for (const int steps : {0, 1, 2, 3, 5, 10, 100}) {
    const auto link = OpenLink({.slot_bytes = 4096, .slots = 3});
    ASSERT_NE(link, nullptr);
    Recv recv;
    recv.capacity = 4096;
    ASSERT_TRUE(link->end(0).PostRecv(&recv).ok());
    SimulatedVerbs::FailPairs();
    bool moved = false;
    for (int i = 0; i < steps; ++i) {
      for (const int side : {0, 1}) ASSERT_TRUE(link->end(side).Progress(&moved).ok());
    }
    link->Sever(1);
    Status status;
    for (const Deadline end = DeadlineAfter(kContractPatience); status.ok() && Now() < end;) {
      status = link->end(0).Progress(&moved);
      if (status.ok() && link->end(0).Arm()) link->reactor(0)->WaitUntil(end);
    }
    EXPECT_EQ(status.code(), Code::kPeerLost) << steps << ": " << status.ToString();
    EXPECT_EQ(status.peer(), 0 + 1);
    EXPECT_EQ(recv.code, Code::kPeerLost);
  }
}

// Its device fails, and its host does not answer over the stream either.
TEST_F(ResumeTrafficTest, APeerWhoseHostDoesNotAnswerIsLostWhenTimeIsUp) {
  constexpr int kLimitMs = 300;
  std::string why;
  const auto network = SocketCutter::Create(&why);  // Where this process may set filters.
  if (network == nullptr) GTEST_SKIP() << why;
  const auto link = OpenLink({.slot_bytes = 4096, .slots = 3}, kLimitMs);
  ASSERT_NE(link, nullptr);
  ASSERT_EQ(Silence(Connected()), 2u);
  SimulatedVerbs::FailPairs();
  const Nanoseconds begin = Now();
  for (const int side : {0, 1}) {
    Status status;
    for (const Deadline end = DeadlineAfter(kContractPatience); status.ok() && Now() < end;) {
      bool moved = false;
      status = link->end(side).Progress(&moved);
      if (status.ok() && link->end(side).Arm()) link->reactor(side)->WaitUntil(end);
    }
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
    EXPECT_EQ(status.peer(), 1 - side);
  }
  EXPECT_GE(Now() - begin, kLimitMs * kMillisecond);
}

}  // namespace
}  // namespace annulus
