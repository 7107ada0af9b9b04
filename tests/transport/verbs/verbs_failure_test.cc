// Links over verbs that fail: a request fails at any moment and with any status, the device or its queue fails. Each
// time both ends tell an error, with its cause, and give everything back.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/device/verbs_api.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr ibv_wc_status kFailures[] = {
    IBV_WC_LOC_LEN_ERR,     IBV_WC_LOC_QP_OP_ERR,     IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,    IBV_WC_REM_OP_ERR,   IBV_WC_RETRY_EXC_ERR,
    IBV_WC_FATAL_ERR,       IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_GENERAL_ERR,
};

// Whether the failed end's own device is to blame.
bool IsOwn(ibv_wc_status failure) {
  return failure == IBV_WC_LOC_LEN_ERR || failure == IBV_WC_LOC_QP_OP_ERR || failure == IBV_WC_LOC_PROT_ERR ||
         failure == IBV_WC_FATAL_ERR;
}

std::unique_ptr<Transport> Make(TransportConfig config) {
  return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
}

std::unique_ptr<ContractLink> OpenLink() {
  return TransportLink::Open(Make, nullptr, {.slot_bytes = 4096, .slots = 3});
}

// A link of one rail, or of more.
std::unique_ptr<ContractLink> OpenRails(uint64_t rails, int slots) {
  constexpr const char* kPorts[] = {"sim0", "sim0,sim1", "sim0,sim1,sim2"};
  SimulatedVerbs::SetMachine({.devices = static_cast<int>(rails)});
  const auto make = [&](TransportConfig config) {
    config.settings.Set("verbs_device", std::string(kPorts[rails - 1]));
    return Make(config);
  };
  return TransportLink::Open(make, nullptr, {.slot_bytes = 4096, .slots = slots});
}

// Sends slices of a plan until the link refuses, which is no failure of the test.
class Speaker {
 public:
  Speaker(Endpoint* end, const Plan& plan) : end_(end), plan_(plan), sends_(static_cast<size_t>(plan.window)) {}

  void Step() {
    for (Send& each : sends_) {
      if (each.code == Code::kInProgress) each.ready = each.bytes;
    }
    Send& send = sends_[static_cast<size_t>(posted_ % plan_.window)];
    if (send.code == Code::kInProgress) return;
    std::byte* slot = nullptr;
    if (!end_->AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) return;
    send = Send();
    send.tag = plan_.TagOf(posted_);
    send.bytes = plan_.Bytes(posted_);
    send.ready = plan_.gradual ? send.bytes / 2 : send.bytes;
    send.data = slot;
    plan_.Fill(posted_, slot, 0, send.bytes);
    if (end_->PostSend(&send).ok()) ++posted_;
  }

 private:
  Endpoint* const end_;
  const Plan plan_;
  std::vector<Send> sends_;
  int posted_ = 0;
};

// Both directions of a link at work, driven by one thread until both ends have failed.
class Traffic {
 public:
  Traffic(ContractLink* link, uint64_t seed) : link_(link), random_(seed) {
    for (int side = 0; side < 2; ++side) {
      Endpoint* const end = &link_->end(side);
      speakers_.push_back(std::make_unique<Speaker>(end, PlanOf(side, seed)));
      listeners_.push_back(std::make_unique<SliceListener>(end, PlanOf(1 - side, seed)));
    }
  }

  // Whether both ends failed in time. What arrives until then is checked.
  bool RunUntilBothFail() {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (status_[0].ok() || status_[1].ok()) {
      if (Now() > deadline) return false;
      bool moved = false;
      for (const size_t side : {0, 1}) {
        if (!status_[side].ok()) continue;
        if (random_() % 8 != 0) status_[side] = link_->end(static_cast<int>(side)).Progress(&moved);
        if (!status_[side].ok()) continue;
        speakers_[side]->Step();
        listeners_[side]->Step();
      }
      if (!moved) link_->Pass();
    }
    return true;
  }
  const Status& status(size_t side) const { return status_[side]; }

 private:
  static Plan PlanOf(int side, uint64_t seed) {
    Plan plan;
    plan.seed = 2 * seed + static_cast<uint64_t>(side);
    plan.slices = 1 << 30;
    plan.window = 6;
    plan.gradual = seed % 3 == 0;
    return plan;
  }

  ContractLink* const link_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Speaker>> speakers_;
  std::vector<std::unique_ptr<SliceListener>> listeners_;
  std::array<Status, 2> status_;
};

class VerbsFailureTest : public ::testing::Test {
 protected:
  ~VerbsFailureTest() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

TEST_F(VerbsFailureTest, ARequestThatFailsAtAnyMomentEndsBothEnds) {
  for (uint64_t seed = 1; seed <= Rounds(30, 10'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    auto link = OpenRails(1 + seed / 9 % 3, 3 + static_cast<int>(seed / 3 % 3));
    ASSERT_NE(link, nullptr);
    Traffic traffic(link.get(), seed);
    const uint64_t requests = random() % 300;
    const ibv_wc_status failure = kFailures[random() % std::size(kFailures)];
    SimulatedVerbs::FailAfter(requests, failure);
    ASSERT_TRUE(traffic.RunUntilBothFail()) << traffic.status(0).ToString() << "; " << traffic.status(1).ToString();
    for (const int side : {0, 1}) {
      const Status& status = traffic.status(static_cast<size_t>(side));
      // The end that failed may hear of its peer's farewell first.
      const bool own = status.code() == Code::kSystem;
      EXPECT_TRUE(own ? IsOwn(failure) : status.code() == Code::kPeerLost) << status.ToString();
      EXPECT_EQ(status.peer(), own ? Status::kNoRank : 1 - side) << status.ToString();
    }
    if (HasFailure()) return;
  }
}

// Drives one end until it fails.
Status ProgressToFailure(ContractLink* link, int side) {
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    status = link->end(side).Progress(&moved);
    if (status.ok() && !moved) link->Pass();
  }
  return status;
}

void PostOne(Endpoint& end, Send* send) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(end.AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  send->data = slot;
  send->bytes = send->ready = 1000;
  ASSERT_TRUE(end.PostSend(send).ok());
}

// A device that fails by itself is not the peer's fault; to the peer, it is this rank's.
TEST_F(VerbsFailureTest, EachFailureIsNamedAndChargedToTheRightRank) {
  for (const ibv_wc_status failure : kFailures) {
    const std::string text = VerbsStatusText(failure);
    SCOPED_TRACE(text);
    auto link = OpenLink();
    ASSERT_NE(link, nullptr);
    SimulatedVerbs::FailAfter(0, failure);
    Send send;
    ASSERT_NO_FATAL_FAILURE(PostOne(link->end(0), &send));
    const Status here = ProgressToFailure(link.get(), 0);
    EXPECT_EQ(here.code(), IsOwn(failure) ? Code::kSystem : Code::kPeerLost) << here.ToString();
    EXPECT_EQ(here.peer(), IsOwn(failure) ? Status::kNoRank : 1) << here.ToString();
    EXPECT_NE(here.message().find(text), std::string::npos) << here.ToString();
    EXPECT_EQ(send.code, here.code());
    const Status there = ProgressToFailure(link.get(), 1);
    EXPECT_EQ(there.code(), Code::kPeerLost) << there.ToString();
    EXPECT_EQ(there.peer(), 0);
    EXPECT_NE(there.message().find("rank 0 gave up its verbs link: " + text), std::string::npos) << there.ToString();
  }
}

// Nothing goes over the other rails any more, which could only bring what comes after it.
TEST_F(VerbsFailureTest, AFailureOfOneRailEndsTheLinkAndNamesItsDevice) {
  for (const int device : {0, 1}) {
    auto link = OpenRails(2, 3);
    ASSERT_NE(link, nullptr);
    SimulatedVerbs::FailPairs(device);
    const Nanoseconds begin = Now();
    const Status here = ProgressToFailure(link.get(), 0);
    EXPECT_EQ(here.code(), Code::kPeerLost) << here.ToString();
    EXPECT_EQ(here.peer(), 1);
    const std::string failed = "sim" + std::to_string(device);
    EXPECT_NE(here.message().find("already failed, on " + failed + ", port 1"), std::string::npos) << here.message();
    EXPECT_NE(here.message().find("sim" + std::to_string(1 - device)), std::string::npos) << "the link has both";
    EXPECT_EQ(ProgressToFailure(link.get(), 1).code(), Code::kPeerLost);
    EXPECT_LT(Now() - begin, kContractPatience / 2);
  }
}

// An end that is closed after a request of it failed still says why it leaves.
TEST_F(VerbsFailureTest, AClosedEndTellsOfItsFailure) {
  auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::FailAfter(0, IBV_WC_LOC_PROT_ERR);
  Send send;
  ASSERT_NO_FATAL_FAILURE(PostOne(link->end(0), &send));
  bool moved = false;
  ASSERT_TRUE(link->end(0).Progress(&moved).ok());
  while (SimulatedVerbs::Counts().waiting > 0) link->Pass();
  CloseWholly(link->end(0));
  const Status there = ProgressToFailure(link.get(), 1);
  EXPECT_NE(there.message().find(VerbsStatusText(IBV_WC_LOC_PROT_ERR)), std::string::npos) << there.ToString();
}

// Nobody asks for completions of the first small slices, so a device that has sent them reports on them only because of
// what fails behind them. Each try takes half a second if nothing does; on a busy machine one may anyhow.
TEST_F(VerbsFailureTest, AFailureIsKnownWithoutCompletionsThatNobodyAskedFor) {
  Nanoseconds least = kSecond;
  for (int i = 0; i < 5; ++i) {
    const auto link = OpenLink();
    ASSERT_NE(link, nullptr);
    Send send;
    std::byte* slot = nullptr;
    ASSERT_TRUE(link->end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    send.data = slot;
    send.bytes = send.ready = 8;
    bool moved = false;
    ASSERT_TRUE(link->end(0).PostSend(&send).ok());
    ASSERT_TRUE(link->end(0).Progress(&moved).ok());
    while (SimulatedVerbs::Counts().waiting > 0) sched_yield();
    SimulatedVerbs::FailPairs();
    const Nanoseconds begin = Now();
    Status status;
    while (status.ok()) status = link->end(0).Progress(&moved);
    least = std::min(least, Now() - begin);
    EXPECT_NE(status.message().find("the queue pair had already failed"), std::string::npos) << status.ToString();
  }
  EXPECT_LT(least, 250 * kMillisecond);
}

TEST_F(VerbsFailureTest, ADeviceThatFailsIsNamed) {
  auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::RaiseEvent(IBV_EVENT_DEVICE_FATAL);
  SimulatedVerbs::RaiseEvent(IBV_EVENT_PORT_ACTIVE);  // It does not mend the device.
  Status status;
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (status.ok() && Now() < deadline) {
    bool moved = false;
    status = link->end(0).Progress(&moved);
    if (status.ok() && link->end(0).Arm()) link->reactor(0)->WaitUntil(deadline);
  }
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.peer(), Status::kNoRank) << "the peer is not to blame";
  EXPECT_NE(status.message().find("the device failed"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("sim0, port 1"), std::string::npos) << status.message();
}

// A port may come back before any request fails.
TEST_F(VerbsFailureTest, APortThatGoesDownIsNoFailureByItself) {
  auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::RaiseEvent(IBV_EVENT_PORT_ERR, 1);
  SimulatedVerbs::RaiseEvent(IBV_EVENT_PORT_ACTIVE, 2);  // Another port, as is the next event's.
  SimulatedVerbs::RaiseEvent(IBV_EVENT_PORT_ERR, 2);
  for (int i = 0; i < 20; ++i) {
    bool moved = false;
    ASSERT_TRUE(link->end(0).Progress(&moved).ok());
    if (link->end(0).Arm()) link->reactor(0)->WaitUntil(DeadlineAfter(kMillisecond));
  }
  // But it explains the failure that follows.
  std::byte* slot = nullptr;
  ASSERT_TRUE(link->end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send send;
  send.data = slot;
  send.bytes = send.ready = 1000;
  SimulatedVerbs::FailAfter(0, IBV_WC_RETRY_EXC_ERR);
  ASSERT_TRUE(link->end(0).PostSend(&send).ok());
  Status status;
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (status.ok() && Now() < deadline) {
    bool moved = false;
    status = link->end(0).Progress(&moved);
  }
  EXPECT_EQ(send.code, Code::kPeerLost);
  EXPECT_NE(status.message().find("did not answer"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("port 1 went down"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace annulus
