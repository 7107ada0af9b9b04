// Links over verbs that fail: a request fails at any moment and with any status, the device or its queue fails, the
// peer sends what is no greeting. Each time both ends tell an error, with its cause, and give everything back.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/security/connector.h"
#include "transport/verbs/device/verbs_api.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_format.h"

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
    if (!end_->AcquireSlot(&slot).ok()) return;
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
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

TEST_F(VerbsFailureTest, ARequestThatFailsAtAnyMomentEndsBothEnds) {
  for (uint64_t seed = 1; seed <= Rounds(60, 10'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    auto link = OpenLink();
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
  ASSERT_TRUE(end.AcquireSlot(&slot).ok());
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
  ASSERT_TRUE(link->end(0).AcquireSlot(&slot).ok());
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

// A peer that has the key, says this in place of a greeting, and leaves. The link, if one comes about, is handed to
// `use`.
Status ConnectTo(const std::vector<std::byte>& words, const std::function<void(Endpoint&)>& use = nullptr) {
  Reactor reactor;
  Reactor peer_reactor;
  TransportConfig config;
  config.nranks = 2;
  config.job_key = "a key for tests, of enough characters";
  config.local_host = "127.0.0.1";
  config.slot_bytes = 4096;
  config.reactor = &reactor;
  const auto transport = Make(config);
  std::string address;
  EXPECT_TRUE(transport->LocalAddress(&address).ok());
  ConnectPlan plan;
  plan.hello.purpose = {kVerbsTransport.hello_purpose, kVerbsTransport.title};
  plan.hello.identity.job = 7;
  plan.hello.nranks = 2;
  plan.hello.rank = 1;
  plan.key = config.job_key;
  plan.deadline = DeadlineAfter(kContractPatience);
  StreamEndpoint target;
  EXPECT_TRUE(ParseEndpoint(std::string(EndpointOf(address)), &target).ok());
  plan.dials.push_back({{0, 0, 0}, {target}});
  std::thread peer([&] {
    std::vector<Stream> streams;
    EXPECT_TRUE(EstablishStreams(&peer_reactor, plan, &streams).ok());
    if (streams.empty()) return;
    const int fd = streams[0].socket.native_handle();
    EXPECT_EQ(send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    // Bytes that nobody read would make the end of the stream a reset.
    std::byte byte;
    for (size_t left = use ? VerbsGreeting::kBytes + sizeof(kVerbsReady) : 0; left > 0;) {
      const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
      if (got == 0 || Now() > plan.deadline) break;
      if (got > 0) --left;
      if (got < 0) sched_yield();
    }
  });
  ConnectContext context;
  context.identity.job = 7;
  context.deadline = plan.deadline;
  const LinkRequest link{.peer = 1, .channel = 0, .same_host = false, .address = ""};
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  Status status = transport->Connect({&link, 1}, context, &endpoints);
  peer.join();
  if (use && !endpoints.empty()) use(*endpoints[0]);
  return status;
}

TEST_F(VerbsFailureTest, APeerThatGreetsWronglyOrLeavesIsNamed) {
  const Status nonsense = ConnectTo(std::vector<std::byte>(VerbsGreeting::kBytes, std::byte{0x5a}));
  EXPECT_EQ(nonsense.code(), Code::kProtocol);
  EXPECT_EQ(nonsense.peer(), 1);
  const Status left = ConnectTo({std::byte{1}});
  EXPECT_EQ(left.code(), Code::kPeerLost);
  EXPECT_EQ(left.peer(), 1);
}

std::vector<std::byte> Greeting(uint64_t slot_bytes) {
  VerbsGreeting greeting;
  greeting.queue_pair = 5;
  greeting.ethernet = true;
  greeting.mtu = 3;
  greeting.slots = 8;
  greeting.slot_bytes = slot_bytes;
  std::vector<std::byte> words(VerbsGreeting::kBytes);
  WriteVerbsGreeting(greeting, std::span<std::byte, VerbsGreeting::kBytes>(words));
  return words;
}

// A peer that claims to have sent so many messages, of which none comes; how the link ends.
Status LeaveAfter(uint32_t sent) {
  std::vector<std::byte> words = Greeting(4096);
  words.resize(VerbsGreeting::kBytes + sizeof(kVerbsReady) + VerbsFarewell::kBytes);
  StoreLittle(words.data() + VerbsGreeting::kBytes, kVerbsReady);
  WriteVerbsFarewell({Code::kOk, 0, sent, 0},
                     std::span<std::byte, VerbsFarewell::kBytes>(
                         words.data() + VerbsGreeting::kBytes + sizeof(kVerbsReady), VerbsFarewell::kBytes));
  Status status;
  const Status connected = ConnectTo(words, [&](Endpoint& end) {
    Recv recv;
    recv.capacity = 4096;
    ASSERT_TRUE(end.PostRecv(&recv).ok());
    for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
      bool moved = false;
      status = end.Progress(&moved);
    }
    EXPECT_EQ(recv.code, status.code());
  });
  EXPECT_TRUE(connected.ok()) << connected.ToString();
  return status;
}

TEST_F(VerbsFailureTest, AFarewellThatLiesEndsTheLink) {
  EXPECT_EQ(LeaveAfter(1).code(), Code::kPeerLost);
  const Status status = LeaveAfter(1000);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("a number of sent messages 1000"), std::string::npos) << status.message();
}

TEST_F(VerbsFailureTest, APeerWithOtherSlotsIsRefused) {
  const Status status = ConnectTo(Greeting(8192));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("8 slots of 8192 bytes"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace annulus
