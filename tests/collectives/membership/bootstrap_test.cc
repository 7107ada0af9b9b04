// The rendezvous over loopback, ranks as threads: who comes in, who does not, and what everyone is told.
#include "collectives/membership/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "base/launchers.h"
#include "collectives/control/control.h"
#include "collectives/control/sockets/control_stream.h"
#include "collectives/membership/bootstrap_messages.h"
#include "tests/collectives/membership/bootstrap_fixture.h"
#include "transport/security/connector.h"

namespace annulus {
namespace {

using Outcome = BootstrapOutcome;
using BootstrapTest = BootstrapFixture;

TEST_F(BootstrapTest, EveryRankGetsTheTable) {
  for (const char* host : {"127.0.0.1", "localhost", "[::1]"}) {
    host_ = host;
    for (int nranks = 1; nranks <= 5; ++nranks) {
      const std::vector<Outcome> outcomes = Run(All(nranks));
      ExpectTable(outcomes);
      const std::string local = outcomes[0].result.local_host;
      EXPECT_EQ(local == "" || local == "127.0.0.1" || local == "::1", true) << local;
    }
  }
}

TEST_F(BootstrapTest, ManyRanksMeetQuickly) {
  constexpr int kRanks = 64;
  const std::vector<Outcome> outcomes = Run(All(kRanks));
  ExpectTable(outcomes);
  std::printf("%d ranks met within %.0f ms\n", kRanks, static_cast<double>(outcomes[0].took) / kMillisecond);
}

TEST_F(BootstrapTest, OneRendezvousServesManyJobsInTurn) {
  std::set<uint64_t> ids;
  for (int job = 0; job < 20; ++job) {
    const std::vector<Outcome> outcomes = Run(All(3));
    ExpectTable(outcomes);
    ids.insert(outcomes[0].result.job_id);
  }
  EXPECT_EQ(ids.size(), 20u);
}

TEST_F(BootstrapTest, ConnectionsServeControl) {
  std::vector<Outcome> outcomes = Run(All(3));
  ExpectTable(outcomes);
  std::vector<std::unique_ptr<Control>> controls(3);
  for (int rank = 0; rank < 3; ++rank) {
    ControlConfig config;
    config.rank = rank;
    config.nranks = 3;
    config.connections = std::move(outcomes[rank].result.connections);
    ASSERT_TRUE(Control::Start(std::move(config), &controls[rank]).ok());
  }
  controls[2]->Abort();
  const Verdict verdict = controls[1]->Report(Status(Code::kTimeout, "late"), Call{});
  EXPECT_EQ(verdict.code, Code::kAborted);
  EXPECT_EQ(verdict.rank, 2);
}

TEST_F(BootstrapTest, MissingRanksAreNamedToEveryRankThatCame) {
  std::vector<BootstrapConfig> configs;
  for (const int rank : {0, 1, 3}) configs.push_back(Config(rank, 6, 700 * kMillisecond));
  const std::vector<Outcome> outcomes = Run(configs);
  ExpectOneFailure(outcomes, Code::kTimeout, "ranks 2, 4 and 5 did not arrive within");
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.message(), outcomes[0].status.message());
    EXPECT_EQ(outcome.status.peer(), 2);
    EXPECT_LT(outcome.took, 5 * kSecond);
  }
}

TEST_F(BootstrapTest, TheEarliestDeadlineIsEveryones) {
  const std::vector<Outcome> outcomes = Run({Config(0, 3), Config(1, 3, 3 * kSecond)});
  ExpectOneFailure(outcomes, Code::kTimeout, "rank 2 did not arrive within");
  EXPECT_LT(outcomes[0].took, kPatience / 2);
}

TEST_F(BootstrapTest, MissingRankZeroIsNamed) {
  const std::vector<Outcome> outcomes = Run({Config(1, 3, 300 * kMillisecond), Config(2, 3, 300 * kMillisecond)});
  ExpectOneFailure(outcomes, Code::kTimeout, " s at 127.0.0.1:");
  EXPECT_EQ(outcomes[0].status.message().rfind("rank 0 did not arrive within ", 0), 0u) << outcomes[0].status.message();
}

TEST_F(BootstrapTest, TwoClaimsOfOneRankAreNamedToAll) {
  const std::vector<Outcome> outcomes = Run({Config(0, 4), Config(1, 4), Config(3, 4), Config(3, 4)});
  ExpectOneFailure(outcomes, Code::kMismatch, "two processes claim rank 3 (127.0.0.1:");
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.took, kPatience / 2);
}

TEST_F(BootstrapTest, OtherNumbersOfRanksAreNamedToBoth) {
  const std::vector<Outcome> outcomes = Run({Config(0, 3), Config(2, 4)});
  ExpectOneFailure(outcomes, Code::kMismatch, ") was started for 4 ranks, rank 0 for 3");
  const std::vector<Outcome> beyond = Run({Config(0, 2), Config(5, 6)});
  ExpectOneFailure(beyond, Code::kMismatch, "rank 5 (127.0.0.1:");
}

TEST_F(BootstrapTest, WrongKeyIsRefusedAndToldApart) {
  constexpr Nanoseconds kTimeout = 3 * kSecond;
  BootstrapConfig wrong = Config(2, 3, kTimeout);
  wrong.job_key = "another key, just as long";
  const std::vector<Outcome> outcomes = Run({Config(0, 3, kTimeout), Config(1, 3, kTimeout), wrong});
  EXPECT_EQ(outcomes[2].status.code(), Code::kAuth) << outcomes[2].status.ToString();
  EXPECT_LT(outcomes[2].took, kTimeout);
  ExpectOneFailure(std::span(outcomes).first(2), Code::kTimeout, "rank 2 did not arrive within");
}

TEST_F(BootstrapTest, StrangersDoNotDisturb) {
  // All that a stranger may do, while rank 0 waits: nothing, noise, a hello of its own making, a close.
  std::vector<Outcome> host(1);
  std::jthread thread([&] { host = Run({Config(0, 2)}); });
  std::vector<int> fds;
  for (const std::string& words : {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), std::string(4096, '\xff'),
                                   std::string("ANNULUS\n\2\0\0\0", 12) + std::string(164, '\0')}) {
    fds.push_back(Dial());
    ASSERT_EQ(::send(fds.back(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  }
  ::close(Dial());
  std::vector<Outcome> guest = Run({Config(1, 2)});
  thread.join();
  guest.insert(guest.begin(), std::move(host[0]));
  ExpectTable(guest);
  for (const int fd : fds) ::close(fd);
}

TEST_F(BootstrapTest, ProvenButBrokenMessagesAreDropped) {
  std::vector<Outcome> host(1);
  std::jthread thread([&] { host = Run({Config(0, 2)}); });
  std::string giant("\xf0\xff\xff\xff\x01", 5);
  const std::string junk = *EncodeMessage(MessageType::kJoin, "junk");
  const std::string early = *EncodeMessage(MessageType::kGoodbye, std::string(10, '\0'));
  for (const std::string& words : {giant, junk, early}) {
    Reactor reactor;
    ConnectPlan plan;
    plan.hello = RendezvousHello(Config(1, 2));
    plan.key = kKey;
    plan.deadline = DeadlineAfter(kPatience);
    plan.dials.resize(1);
    ASSERT_TRUE(Resolve(Config(1, 2).rendezvous, plan.deadline, &plan.dials[0].endpoints).ok());
    std::vector<Stream> streams;
    ASSERT_TRUE(EstablishStreams(&reactor, plan, &streams).ok());
    const int fd = streams[0].socket.release();
    ASSERT_EQ(::send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    ::fcntl(fd, F_SETFL, 0);  // Blocking.
    char answer;
    EXPECT_LE(::recv(fd, &answer, 1, 0), 0);  // Closed, in order or by a reset.
    ::close(fd);
  }
  std::vector<Outcome> guest = Run({Config(1, 2)});
  thread.join();
  guest.insert(guest.begin(), std::move(host[0]));
  ExpectTable(guest);
}

TEST_F(BootstrapTest, RanksHaveMetBeforeRankZeroReturns) {
  constexpr int kRanks = 4;
  std::atomic<int> met{0};
  std::vector<BootstrapConfig> guests = All(kRanks);
  for (BootstrapConfig& guest : guests) guest.met = [&] { ++met; };
  guests.erase(guests.begin());
  std::vector<Outcome> joined;
  std::jthread thread([&] { joined = Run(guests); });
  std::vector<Outcome> outcomes = Run({Config(0, kRanks)});
  EXPECT_EQ(met.load(), kRanks - 1);
  thread.join();
  for (Outcome& each : joined) outcomes.push_back(std::move(each));
  ExpectTable(outcomes);
  EXPECT_EQ(met.load(), kRanks - 1);
}

TEST_F(BootstrapTest, InsecureJobsNeedNoKey) {
  std::vector<BootstrapConfig> configs = All(2);
  for (BootstrapConfig& config : configs) config.job_key = "";
  ExpectTable(Run(configs));
}

TEST_F(BootstrapTest, OccupiedPortIsAnErrorAtTheDeadline) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  const std::vector<Outcome> outcomes = Run({Config(0, 2, 200 * kMillisecond)});
  EXPECT_EQ(outcomes[0].status.code(), Code::kSystem);
  EXPECT_EQ(outcomes[0].status.os_errno(), EADDRINUSE);
  ::close(fd);
}

TEST_F(BootstrapTest, AddressesAndSizesThatCannotBeAreRefused) {
  BootstrapConfig config = Config(0, 2);
  config.rendezvous = "no port";
  EXPECT_EQ(Run({config})[0].status.code(), Code::kInvalidArgument);
  config.rank = 1;
  EXPECT_EQ(Run({config})[0].status.code(), Code::kInvalidArgument);
  config = Config(2, 2);
  EXPECT_EQ(Run({config})[0].status.code(), Code::kInvalidArgument);
  const Status too_many = Run({Config(0, JobPlace::kMostRanks + 1)})[0].status;
  EXPECT_EQ(too_many.code(), Code::kInvalidArgument);
  EXPECT_EQ(too_many.message(), "a job of 4097 ranks cannot be: at most 4096");
}

}  // namespace
}  // namespace annulus
