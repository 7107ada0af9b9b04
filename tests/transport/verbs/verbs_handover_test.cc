// How a link over verbs is set up over its stream: with a peer that greets wrongly, says what it must not, falls silent
// or leaves, and with devices that refuse, at either end.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_refusals.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/security/connector.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/rail/verbs_format.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

class VerbsHandoverTest : public ::testing::Test {
 protected:
  ~VerbsHandoverTest() override {
    SimulatedRefusals::Clear();
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

struct PeerOptions {
  bool has_other = false;                        // Whether the link has another transport, at this end.
  Nanoseconds patience = kContractPatience;      // For how long this end waits.
  bool reads = false;                            // The peer reads all that this end may say.
  bool stays = false;                            // The peer says nothing more, and waits for this end to leave.
  std::function<void(Endpoint&)> use = nullptr;  // Gets the link, if one comes about.
};

// What came of it at this end.
struct Result {
  Status status;
  bool linked = false;
  std::string refusal;  // The reason for which the link was left to another transport.
};

// A peer that has the key, says this in place of a greeting, and leaves.
Result ConnectTo(const std::vector<std::byte>& words, const PeerOptions& options = {}) {
  Reactor reactor;
  Reactor peer_reactor;
  TransportConfig config;
  config.nranks = 2;
  config.job_key = "a key for tests, of enough characters";
  config.local_host = "127.0.0.1";
  config.slot_bytes = 4096;
  config.reactor = &reactor;
  const auto transport = CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
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
    const bool reads = options.use || options.has_other || options.reads;
    const size_t all = VerbsGreeting::kBytes + VerbsWord::kBytes;
    for (size_t left = options.stays ? SIZE_MAX : reads ? all : 0; left > 0;) {
      const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
      if (got == 0 || Now() > plan.deadline) break;
      if (got > 0) --left;
      if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) break;
      if (got < 0) sched_yield();
    }
  });
  Result result;
  ConnectContext context;
  context.identity.job = 7;
  context.deadline = DeadlineAfter(options.patience);
  context.refused = [&result](size_t, const std::string& why) { result.refusal = why; };
  const LinkRequest link{.peer = 1, .channel = 0, .same_host = false, .address = "", .has_other = options.has_other};
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  result.status = transport->Connect({&link, 1}, context, &endpoints);
  result.linked = !endpoints.empty() && endpoints[0] != nullptr;
  EXPECT_TRUE(result.refusal.empty() || endpoints.size() == 1);
  if (options.use && result.linked) options.use(*endpoints[0]);
  endpoints.clear();
  peer.join();
  return result;
}

TEST_F(VerbsHandoverTest, APeerThatGreetsWronglyOrLeavesIsNamed) {
  const Status nonsense = ConnectTo(std::vector<std::byte>(VerbsGreeting::kBytes, std::byte{0x5a})).status;
  EXPECT_EQ(nonsense.code(), Code::kProtocol);
  EXPECT_EQ(nonsense.peer(), 1);
  const Status left = ConnectTo({std::byte{1}}).status;
  EXPECT_EQ(left.code(), Code::kPeerLost);
  EXPECT_EQ(left.peer(), 1);
}

VerbsGreeting Greeting(uint64_t slot_bytes) {
  VerbsGreeting greeting;
  greeting.slots = 8;
  greeting.slot_bytes = slot_bytes;
  greeting.num_rails = 1;
  greeting.rails[0].queue_pair = 5;
  greeting.rails[0].ethernet = true;
  greeting.rails[0].mtu = 3;
  return greeting;
}

std::vector<std::byte> Words(const VerbsGreeting& greeting, const VerbsWord& word) {
  std::vector<std::byte> words(VerbsGreeting::kBytes + VerbsWord::kBytes);
  const std::span all(words);
  WriteVerbsGreeting(greeting, all.first<VerbsGreeting::kBytes>());
  WriteVerbsWord(word, all.last<VerbsWord::kBytes>());
  return words;
}

// A peer that claims to have sent so many messages, of which none comes; how the link ends.
Status LeaveAfter(uint32_t sent) {
  std::array<std::byte, VerbsFarewell::kBytes> farewell;
  WriteVerbsFarewell({Code::kOk, 0, 0, {{{sent, 0}}}}, farewell);
  std::vector<std::byte> words = Words(Greeting(4096), {.ready = true});
  words.insert(words.end(), farewell.begin(), farewell.end());
  Status status;
  const auto use = [&status](Endpoint& end) {
    Recv recv;
    recv.capacity = 4096;
    ASSERT_TRUE(end.PostRecv(&recv).ok());
    for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
      bool moved = false;
      status = end.Progress(&moved);
    }
    EXPECT_EQ(recv.code, status.code());
  };
  const Status connected = ConnectTo(words, {.use = use}).status;
  EXPECT_TRUE(connected.ok()) << connected.ToString();
  return status;
}

TEST_F(VerbsHandoverTest, AFarewellThatLiesEndsTheLink) {
  EXPECT_EQ(LeaveAfter(1).code(), Code::kPeerLost);
  const Status status = LeaveAfter(1000);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("a number of sent messages 1000"), std::string::npos) << status.message();
}

TEST_F(VerbsHandoverTest, APeerWithOtherSlotsIsRefused) {
  const Status status = ConnectTo(Words(Greeting(8192), {.ready = true})).status;
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("8 slots of 8192 bytes"), std::string::npos) << status.message();
}

// Both have computed how many there are from what they told each other at the rendezvous.
TEST_F(VerbsHandoverTest, APeerWithOtherRailsIsRefused) {
  VerbsGreeting greeting = Greeting(4096);
  greeting.num_rails = 2;
  greeting.rails[1] = greeting.rails[0];
  const Status status = ConnectTo(Words(greeting, {.ready = true})).status;
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.peer(), 1);
  EXPECT_NE(status.message().find("rank 1 links 2 ports, and this rank 1"), std::string::npos) << status.message();
}

constexpr VerbsWord kNoMemory = {.refused = VerbsStep::kPair, .os_errno = ENOMEM};

TEST_F(VerbsHandoverTest, APeerWhoseDeviceRefusesLeavesTheLinkToAnotherTransport) {
  for (const bool greets : {true, false}) {
    const VerbsGreeting greeting = greets ? Greeting(4096) : VerbsGreeting{.refused = true};
    const Result result = ConnectTo(Words(greeting, kNoMemory), {.has_other = true});
    EXPECT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_FALSE(result.linked);
    EXPECT_EQ(result.refusal,
              "rank 1's device refused memory or a queue pair: Cannot allocate memory (its log says more)");
  }
}

TEST_F(VerbsHandoverTest, APeerThatRefusesWhereThereIsNoOtherTransportBreaksTheRules) {
  for (const bool greets : {true, false}) {
    const VerbsGreeting greeting = greets ? Greeting(4096) : VerbsGreeting{.refused = true};
    const Result result = ConnectTo(Words(greeting, kNoMemory), {.reads = true});
    EXPECT_EQ(result.status.code(), Code::kProtocol) << result.status.ToString();
    EXPECT_EQ(result.status.peer(), 1);
  }
}

// Neither end may believe that the link is up, or refused, when the other does not.
TEST_F(VerbsHandoverTest, WordsThatContradictTheGreetingBreakTheRules) {
  const VerbsGreeting refusal{.refused = true};
  for (const auto& words : {Words(refusal, {.ready = true}), Words(refusal, {}), Words(Greeting(4096), {}),
                            Words(Greeting(4096), {.refused = static_cast<VerbsStep>(9)})}) {
    const Result result = ConnectTo(words, {.has_other = true});
    EXPECT_EQ(result.status.code(), Code::kProtocol) << result.status.ToString();
    EXPECT_EQ(result.status.peer(), 1);
    EXPECT_EQ(result.refusal, "");
  }
}

// Each wait has an end: for the greeting, and for the word.
TEST_F(VerbsHandoverTest, APeerThatFallsSilentIsNamedAtTheDeadline) {
  const std::vector<std::byte> words = Words(Greeting(4096), {.ready = true});
  constexpr size_t kGreeting = VerbsGreeting::kBytes;
  for (const size_t said : {size_t{0}, kGreeting - 1, kGreeting, kGreeting + VerbsWord::kBytes - 1}) {
    for (const bool has_other : {false, true}) {
      const std::vector<std::byte> some(words.begin(), words.begin() + static_cast<ptrdiff_t>(said));
      const Result result = ConnectTo(some, {.has_other = has_other, .patience = 200 * kMillisecond, .stays = true});
      EXPECT_EQ(result.status.code(), Code::kTimeout) << said << ": " << result.status.ToString();
      EXPECT_EQ(result.status.peer(), 1);
    }
  }
}

// This end's device refuses; the peer is told, whatever it says itself.
TEST_F(VerbsHandoverTest, AnEndWhoseDeviceRefusesSaysWhy) {
  const std::vector<std::byte> words = Words(Greeting(4096), {});
  for (const auto& [call, what] :
       {std::pair{SimulatedCall::kQueue, "a completion queue on sim0"},
        std::pair{SimulatedCall::kRegister, "sim0, port 1, RoCE v2 127.0.0.1 cannot register"},
        std::pair{SimulatedCall::kPair, "a queue pair on sim0"},
        std::pair{SimulatedCall::kConnectToSend, "connecting a queue pair on sim0"}}) {
    SCOPED_TRACE(what);
    SimulatedRefusals::Refuse(call, ENOMEM);
    const bool connects = call == SimulatedCall::kConnectToSend;
    const Result result = ConnectTo(connects ? Words(Greeting(4096), {.ready = true}) : words, {.has_other = true});
    EXPECT_TRUE(result.status.ok()) << result.status.ToString();
    EXPECT_FALSE(result.linked);
    EXPECT_NE(result.refusal.find(what), std::string::npos) << result.refusal;
    EXPECT_NE(result.refusal.find("rank 0's device refused it"), std::string::npos) << result.refusal;
    SimulatedRefusals::Refuse(call, ENOMEM);
    const Status alone = ConnectTo(words).status;
    EXPECT_FALSE(alone.ok());
    EXPECT_NE(alone.message().find(what), std::string::npos) << alone.ToString();
    EXPECT_NE(alone.message().find("Cannot allocate memory"), std::string::npos) << alone.ToString();
  }
}

}  // namespace
}  // namespace annulus
