// Devices that run out: of receives for messages (receiver not ready), of room for completions, and of queues that can
// be polled at all. The simulated device tells it as verbs specifies, and a link ends at once, with a verdict that
// names the rank, the device and the cause.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_api.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/device/verbs_hub.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/rail/verbs_queue_pair.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr char kOverflowed[] = "its completion queue overflowed";

bool Has(const Status& status, const std::string& text) { return status.message().find(text) != std::string::npos; }

// Whether the devices have nothing to do any more.
bool Settle() {
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (SimulatedVerbs::Counts().waiting > 0) {
    if (Now() > deadline) return false;
    sched_yield();
  }
  return true;
}

// One end of a connection without a link, so that nothing counts credits.
class RawEnd final : public VerbsLink {
 public:
  static constexpr uint32_t kDepth = 8;

  static std::unique_ptr<RawEnd> Make() {
    std::unique_ptr<VerbsDevice> device;
    EXPECT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device).ok());
    return std::make_unique<RawEnd>(std::move(device));
  }
  explicit RawEnd(std::unique_ptr<VerbsDevice> device)
      : hub_(std::move(device), &reactor_), number_(hub_.Add(this)), pair_(&hub_, number_, kDepth, {}) {
    EXPECT_TRUE(hub_.Open(2 * kDepth).ok());
    EXPECT_TRUE(pair_.Create().ok());
    region_ = hub_.api().reg_mr(hub_.domain(), cell_.data(), cell_.size(), IBV_ACCESS_LOCAL_WRITE);
    EXPECT_NE(region_, nullptr);
  }
  ~RawEnd() {
    EXPECT_EQ(pair_.Destroy(), 0);
    hub_.Remove(number_);
    hub_.api().dereg_mr(region_);
  }

  void Connect(const RawEnd& peer) {
    VerbsRailGreeting greeting;
    peer.pair_.Greet(&greeting);
    EXPECT_TRUE(pair_.Connect(greeting).ok());
  }
  void PostReceive() {
    VerbsQueuePair::Receive receive;
    pair_.MakeReceive(0, cell_.data(), region_->lkey, &receive);
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(pair_.PostReceives(&receive.request, &bad), 0);
  }
  void PostMessage() {
    ibv_send_wr request{};
    request.wr_id = pair_.SendId(++posted_);
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(pair_.PostSends(&request, &bad), 0);
  }
  // The statuses of all that has completed so far.
  const std::vector<ibv_wc_status>& Statuses() {
    while (hub_.Poll() > 0) {
    }
    return statuses_;
  }
  VerbsHub& hub() { return hub_; }

 private:
  void OnCompletion(const ibv_wc& completion, VerbsRequest, uint32_t) override {
    statuses_.push_back(completion.status);
  }

  std::array<std::byte, kVerbsCellBytes> cell_{};
  Reactor reactor_;
  VerbsHub hub_;
  const uint32_t number_;
  VerbsQueuePair pair_;
  ibv_mr* region_ = nullptr;
  uint32_t posted_ = 0;
  std::vector<ibv_wc_status> statuses_;
};

struct RawConnection {
  RawConnection() {
    sender->Connect(*receiver);
    receiver->Connect(*sender);
  }
  std::unique_ptr<RawEnd> sender = RawEnd::Make();
  std::unique_ptr<RawEnd> receiver = RawEnd::Make();
};

std::unique_ptr<ContractLink> OpenLink() {
  const auto make = [](const TransportConfig& config) {
    return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
  };
  return TransportLink::Open(make, nullptr, {.slot_bytes = 4096, .slots = 4});
}

// Drives one end until it fails, asleep while there is nothing to do.
Status ProgressToFailure(ContractLink* link, int side) {
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    status = link->end(side).Progress(&moved);
    if (status.ok() && link->end(side).Arm()) link->reactor(side)->WaitUntil(deadline);
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

class VerbsExhaustedTest : public ::testing::Test {
 protected:
  ~VerbsExhaustedTest() override {
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  // What the devices have counted since the test began.
  uint64_t not_ready() const { return SimulatedVerbs::Counts().not_ready - before_.not_ready; }
  uint64_t overruns() const { return SimulatedVerbs::Counts().overruns - before_.overruns; }

 private:
  const SimulatedCounts before_ = SimulatedVerbs::Counts();
};

// Four messages for two receives: the third one is tried again and again, and then fails with all behind it.
TEST_F(VerbsExhaustedTest, ASenderThatBreaksTheCreditRuleFailsAsReceiverNotReady) {
  RawConnection raw;
  for (int i = 0; i < 2; ++i) raw.receiver->PostReceive();
  for (int i = 0; i < 4; ++i) raw.sender->PostMessage();
  ASSERT_TRUE(Settle());
  const std::vector sent{IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR};
  EXPECT_EQ(raw.sender->Statuses(), sent);
  EXPECT_EQ(raw.receiver->Statuses(), std::vector(2, IBV_WC_SUCCESS)) << "the receiver's end is not broken by it";
  EXPECT_GT(not_ready(), 1u) << "a device tries more than once";
}

TEST_F(VerbsExhaustedTest, AReceiveThatIsPostedInTimeIsFound) {
  SimulatedVerbs::SetMachine({.slow_device = 0});
  RawConnection raw;
  raw.sender->PostMessage();
  SimulatedVerbs::Allow(1);
  ASSERT_TRUE(Settle());
  EXPECT_EQ(not_ready(), 1u);
  EXPECT_EQ(raw.sender->Statuses().size(), 0u);
  raw.receiver->PostReceive();
  SimulatedVerbs::Allow(1);
  ASSERT_TRUE(Settle());
  EXPECT_EQ(raw.sender->Statuses(), std::vector{IBV_WC_SUCCESS});
  EXPECT_EQ(raw.receiver->Statuses(), std::vector{IBV_WC_SUCCESS});
}

TEST_F(VerbsExhaustedTest, AQueueThatOverrunsFailsItsHubAndNoOther) {
  SimulatedVerbs::SetMachine({.queue_room = 2});
  RawConnection raw;
  for (int i = 0; i < 3; ++i) {
    raw.receiver->PostReceive();
    raw.sender->PostMessage();
    ASSERT_TRUE(Settle());
    EXPECT_EQ(raw.sender->Statuses().size(), static_cast<size_t>(i + 1)) << "it polls in time";
  }
  EXPECT_EQ(overruns(), 1u);
  EXPECT_FALSE(raw.receiver->hub().failed());
  EXPECT_EQ(raw.receiver->Statuses().size(), 0u);
  EXPECT_TRUE(raw.receiver->hub().failed());
  EXPECT_EQ(raw.receiver->hub().trouble(), std::string("; ") + kOverflowed);
  EXPECT_FALSE(raw.sender->hub().failed());
}

TEST_F(VerbsExhaustedTest, AReceiverWithoutReceivesEndsTheLinkAndIsNamed) {
  const auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::SetMachine({.hides_receives = true});
  Send send;
  ASSERT_NO_FATAL_FAILURE(PostOne(link->end(0), &send));
  const std::string text = VerbsStatusText(IBV_WC_RNR_RETRY_EXC_ERR);
  const Status here = ProgressToFailure(link.get(), 0);
  EXPECT_EQ(here.code(), Code::kPeerLost);
  EXPECT_EQ(here.peer(), 1);
  EXPECT_TRUE(Has(here, "rank 1 was lost: " + text) && Has(here, "sim0, port 1")) << here.ToString();
  EXPECT_EQ(send.code, Code::kPeerLost);
  EXPECT_GT(not_ready(), 0u);
  const Status there = ProgressToFailure(link.get(), 1);
  EXPECT_EQ(there.code(), Code::kPeerLost);
  EXPECT_EQ(there.peer(), 0);
  EXPECT_TRUE(Has(there, "rank 0 gave up its verbs link: " + text) && Has(there, "sim0, port 1")) << there.ToString();
}

// Side 1 does not poll while side 0 sends more than its queue has room for.
void Overrun(ContractLink* link, std::array<Send, 3>* sends) {
  SimulatedVerbs::SetMachine({.queue_room = 2});
  for (Send& send : *sends) {
    ASSERT_NO_FATAL_FAILURE(PostOne(link->end(0), &send));
    ASSERT_TRUE(Settle());
    bool moved = false;
    ASSERT_TRUE(link->end(0).Progress(&moved).ok());
  }
  ASSERT_TRUE(Settle());
}

// The rank whose queue it is blames its device, and its peer blames the rank.
void ExpectFailureOfSide1(ContractLink* link, const std::string& cause) {
  const Status here = ProgressToFailure(link, 1);
  EXPECT_EQ(here.code(), Code::kSystem) << here.ToString();
  EXPECT_EQ(here.peer(), Status::kNoRank) << "the peer is not to blame";
  EXPECT_TRUE(Has(here, "waiting for completions for rank 0 on sim0, port 1")) << here.ToString();
  EXPECT_TRUE(Has(here, cause)) << here.ToString();
  SimulatedVerbs::SetMachine({});
  const Status there = ProgressToFailure(link, 0);
  EXPECT_EQ(there.code(), Code::kPeerLost) << there.ToString();
  EXPECT_EQ(there.peer(), 1);
  EXPECT_TRUE(Has(there, "rank 1 gave up its verbs link") && Has(there, "sim0, port 1")) << there.ToString();
}

// Whether its end sleeps at that moment, waiting for a completion, or finds out by a poll that fails.
TEST_F(VerbsExhaustedTest, AnOverrunEndsTheLinkAndIsNamed) {
  for (const bool sleeps : {false, true}) {
    SCOPED_TRACE(sleeps);
    const auto link = OpenLink();
    ASSERT_NE(link, nullptr);
    if (sleeps) {
      bool moved = false;
      ASSERT_TRUE(link->end(1).Progress(&moved).ok());
      ASSERT_TRUE(link->end(1).Arm());
    }
    std::array<Send, 3> sends;
    ASSERT_NO_FATAL_FAILURE(Overrun(link.get(), &sends));
    EXPECT_GT(overruns(), 0u);
    ExpectFailureOfSide1(link.get(), kOverflowed);
  }
}

// Of the queue as drivers do that tell of it before a poll fails, or in place of that.
TEST_F(VerbsExhaustedTest, AnEventOfAQueueIsEnough) {
  const auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::RaiseEvent(IBV_EVENT_CQ_ERR);
  const Status status = ProgressToFailure(link.get(), 0);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.peer(), Status::kNoRank);
  EXPECT_TRUE(Has(status, kOverflowed) && Has(status, "rank 1 on sim0, port 1")) << status.ToString();
}

// Drivers return -1, and others an error's number.
TEST_F(VerbsExhaustedTest, APollThatFailsEndsTheLink) {
  for (const int error : {-1, -EINVAL}) {
    SCOPED_TRACE(error);
    const auto link = OpenLink();
    ASSERT_NE(link, nullptr);
    SimulatedVerbs::SetMachine({.poll_error = error});
    ExpectFailureOfSide1(link.get(), "Input/output error");
  }
}

// Nothing that it sent will be acknowledged, so it does not linger.
TEST_F(VerbsExhaustedTest, AnEndWhoseQueueFailedIsClosedAtOnce) {
  const auto link = OpenLink();
  ASSERT_NE(link, nullptr);
  SimulatedVerbs::SetMachine({.slow_device = 0});
  Send send;
  ASSERT_NO_FATAL_FAILURE(PostOne(link->end(0), &send));
  bool moved = false;
  ASSERT_TRUE(link->end(0).Progress(&moved).ok());
  SimulatedVerbs::SetMachine({.poll_error = -1});
  const Nanoseconds begin = Now();
  CloseWholly(link->end(0));
  EXPECT_LT(Now() - begin, 2 * kSecond);
}

}  // namespace
}  // namespace annulus
