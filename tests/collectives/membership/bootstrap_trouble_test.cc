// The rendezvous where something is not as it should be: ranks of other runs or libraries, strangers at its port, wrong
// addresses, a rank that does not read, and too few descriptors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/log.h"
#include "collectives/control/sockets/control_stream.h"
#include "collectives/membership/bootstrap_messages.h"
#include "tests/base/descriptor_limit.h"
#include "tests/collectives/membership/bootstrap_fixture.h"
#include "transport/reserved_port.h"
#include "transport/security/connector.h"

namespace annulus {
namespace {

using Outcome = BootstrapOutcome;
using BootstrapTroubleTest = BootstrapFixture;

// As after a restart under torchrun: the key and the port are the same, and a worker of the first start is left over.
TEST_F(BootstrapTroubleTest, RankOfAnotherRunIsRefusedByNameAndTheTrueOneIsSeated) {
  BootstrapConfig host = Config(0, 2);
  host.identity.run = {"B", 1};
  BootstrapConfig stale = Config(1, 2);
  stale.identity.run = {"A", 0};
  std::vector<Outcome> meeting(1);
  std::jthread thread([&] { meeting = Run({host}); });
  const std::vector<Outcome> refused = Run({stale});
  EXPECT_EQ(refused[0].status.code(), Code::kMismatch);
  EXPECT_NE(refused[0].status.message().find("belongs to run A restart 0, rank 0 (unproven) to run B restart 1"),
            std::string::npos)
      << refused[0].status.ToString();
  BootstrapConfig genuine = Config(1, 2);
  genuine.identity.run = {"B", 1};
  std::vector<Outcome> guest = Run({genuine});
  thread.join();
  guest.insert(guest.begin(), std::move(meeting[0]));
  ExpectTable(guest);
}

TEST_F(BootstrapTroubleTest, RankWaitsUntilRankZeroOfAnEarlierStartHasGone) {
  BootstrapConfig stale = Config(0, 2, kSecond);
  stale.identity.run = {"A", 0};
  std::vector<BootstrapConfig> configs = All(2);
  for (BootstrapConfig& config : configs) config.identity.run = {"A", 1};
  std::vector<Outcome> left(1);
  std::jthread thread([&] { left = Run({stale}); });
  ::close(Dial());
  const std::vector<Outcome> outcomes = Run(configs);
  thread.join();
  ExpectTable(outcomes);
  EXPECT_EQ(left[0].status.code(), Code::kTimeout);
  EXPECT_NE(left[0].status.message().find("rank 1 (unproven) to run A restart 1"), std::string::npos)
      << left[0].status.ToString();
}

TEST_F(BootstrapTroubleTest, SplitOfAnotherParentIsRefused) {
  std::vector<BootstrapConfig> configs = All(2);
  configs[0].deadline = DeadlineAfter(kSecond);
  configs[0].identity.job = 5;
  configs[1].identity.job = 6;
  const std::vector<Outcome> outcomes = Run(configs);
  EXPECT_EQ(outcomes[1].status.code(), Code::kProtocol) << outcomes[1].status.ToString();
  EXPECT_EQ(outcomes[0].status.code(), Code::kTimeout);
}

TEST_F(BootstrapTroubleTest, OtherVersionsOfTheLibraryAreNamedToAllWithTheirFiles) {
  std::vector<BootstrapConfig> configs = All(3);
  configs[0].library = {{1, 4, 0}, {}, "/opt/here/libannulus.so"};
  configs[1].library = {{1, 4, 7}, {}, "/opt/there/libannulus.so"};
  configs[2].library = {{1, 5, 0}, {}, "/usr/lib/libannulus.so"};
  const std::vector<Outcome> outcomes = Run(configs);
  ExpectOneFailure(outcomes, Code::kMismatch, "rank 2 (127.0.0.1:");
  ExpectOneFailure(outcomes, Code::kMismatch,
                   "has Annulus 1.5.0, /usr/lib/libannulus.so, rank 0 has Annulus 1.4.0, /opt/here/libannulus.so");
}

TEST_F(BootstrapTroubleTest, AnotherBuildOfTheSameVersionIsSeatedAndToldInTheLog) {
  std::vector<BootstrapConfig> configs = All(3);
  for (BootstrapConfig& config : configs) config.library = {{1, 4, 0}, {}, "/opt/libannulus.so"};
  configs[2].library = {{1, 4, 7}, {}, "/usr/lib/libannulus.so"};
  configs[2].library.build.fill(std::byte{0xa5});
  const LogLevel before = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  const std::vector<Outcome> outcomes = Run(configs);
  const std::string log = testing::internal::GetCapturedStderr();
  SetLogLevel(before);
  ExpectTable(outcomes);
  EXPECT_NE(log.find("rank 2 has another build of Annulus: 1.4.7, build a5a5a5a5a5a5a5a5, /usr/lib/libannulus.so"),
            std::string::npos)
      << log;
  EXPECT_EQ(log.find("rank 1 has another build"), std::string::npos) << log;
}

TEST_F(BootstrapTroubleTest, WhoeverAnswersNonsenseBeforeRankZeroIsWaitedOut) {
  const int squatter = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(squatter, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(squatter, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(squatter, 10), 0);
  std::vector<Outcome> guest(1);
  std::jthread thread([&] { guest = Run({Config(1, 2)}); });
  const int visitor = ::accept(squatter, nullptr, nullptr);
  const std::string words = "HTTP/1.0 400 Bad Request\r\n\r\n";
  EXPECT_EQ(::send(visitor, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  ::close(squatter);
  ::close(visitor);
  std::vector<Outcome> outcomes = Run({Config(0, 2)});
  thread.join();
  outcomes.push_back(std::move(guest[0]));
  ExpectTable(outcomes);
}

TEST_F(BootstrapTroubleTest, ListenerThatReservedThePortServesManyJobsAndStaysOpen) {
  ReservedPort reserved;
  ASSERT_TRUE(reserved.Reserve("127.0.0.1").ok());
  port_ = reserved.port();
  for (int job = 0; job < 3; ++job) {
    std::vector<BootstrapConfig> configs = All(3);
    configs[0].listener = reserved.listener();
    ExpectTable(Run(configs));
    ::close(Dial());
  }
}

TEST_F(BootstrapTroubleTest, ListenerOfAnotherPortIsNotUsed) {
  ReservedPort elsewhere;
  ASSERT_TRUE(elsewhere.Reserve("127.0.0.1").ok());
  std::vector<BootstrapConfig> configs = All(2);
  configs[0].listener = elsewhere.listener();
  ExpectTable(Run(configs));
}

TEST_F(BootstrapTroubleTest, AddressThatIsNotRankZerosIsNamed) {
  BootstrapConfig host = Config(0, 2, 500 * kMillisecond);
  host.rendezvous = "192.0.2.1:" + std::to_string(port_);  // Reserved for documentation: nobody's.
  const std::vector<Outcome> outcomes = Run({host});
  ExpectOneFailure(outcomes, Code::kTimeout, ", which is not an address of rank 0's host");
}

TEST_F(BootstrapTroubleTest, AddressAtWhichNobodyAnswersIsNamed) {
  ExpectOneFailure(Run({Config(1, 2, 300 * kMillisecond)}), Code::kTimeout, "nothing answers at this address");
}

// A rank with a short deadline joins and goes; what remains is the deadline of rank 0.
TEST_F(BootstrapTroubleTest, DeadlineOfARankThatHasGoneEndsNothing) {
  constexpr Nanoseconds kShort = 2 * kSecond;
  std::vector<Outcome> host(1);
  std::jthread thread([&] { host = Run({Config(0, 3)}); });
  Reactor reactor;
  ConnectPlan plan;
  plan.hello = RendezvousHello(Config(1, 3));
  plan.key = kKey;
  plan.deadline = DeadlineAfter(kPatience);
  plan.dials.resize(1);
  ASSERT_TRUE(Resolve(Config(0, 3).rendezvous, plan.deadline, &plan.dials[0].endpoints).ok());
  std::vector<Stream> streams;
  ASSERT_TRUE(EstablishStreams(&reactor, plan, &streams).ok());
  const std::string join = *EncodeMessage(MessageType::kJoin, Encode(JoinMessage{3, 1, kShort, "", "gone"}));
  ASSERT_EQ(::send(streams[0].socket.native_handle(), join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
  streams.clear();
  const Deadline end = DeadlineAfter(kShort + 200 * kMillisecond);
  while (Now() < end) reactor.WaitUntil(end);
  std::vector<Outcome> outcomes = Run({Config(1, 3, 20 * kSecond), Config(2, 3, 20 * kSecond)});
  thread.join();
  outcomes.insert(outcomes.begin(), std::move(host[0]));
  ExpectTable(outcomes);
}

// A rank that has joined and then does not read, as one that is stopped. Small buffers keep the table from fitting.
TEST_F(BootstrapTroubleTest, RankThatDoesNotTakeTheTableIsNamedToAll) {
  ReservedPort reserved;
  ASSERT_TRUE(reserved.Reserve("127.0.0.1").ok());
  port_ = reserved.port();
  const int least = 1;
  ASSERT_EQ(::setsockopt(reserved.listener(), SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
  constexpr int kRanks = 20;
  std::vector<BootstrapConfig> configs;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 2) continue;
    configs.push_back(Config(rank, kRanks, 3 * kSecond));
    configs.back().blob.assign(kMostBlobBytes, 'x');
  }
  configs[0].listener = reserved.listener();
  std::vector<Outcome> outcomes;
  std::jthread thread([&] { outcomes = Run(configs); });
  Reactor reactor;
  ConnectPlan plan;
  plan.hello = RendezvousHello(Config(2, kRanks));
  plan.key = kKey;
  plan.deadline = DeadlineAfter(kPatience);
  plan.dials.resize(1);
  plan.configure = [&](int fd) { ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least); };
  ASSERT_TRUE(Resolve(configs[0].rendezvous, plan.deadline, &plan.dials[0].endpoints).ok());
  std::vector<Stream> streams;
  ASSERT_TRUE(EstablishStreams(&reactor, plan, &streams).ok());
  const std::string join =
      *EncodeMessage(MessageType::kJoin, Encode(JoinMessage{kRanks, 1, 3 * kSecond, "", "stopped"}));
  ASSERT_EQ(::send(streams[0].socket.native_handle(), join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
  thread.join();
  const std::string text = "rank 2 does not take the table of ranks (stopped or unreachable)";
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), Code::kTimeout);
    EXPECT_EQ(outcome.status.message(), text);
    EXPECT_EQ(outcome.status.peer(), 2);
  }
}

// It has been given the table and does not take it, while something else ends the start.
TEST_F(BootstrapTroubleTest, RankZeroGivesUpWhileTheTableIsNotTaken) {
  std::atomic<bool> is_over{false};
  BootstrapConfig config = Config(0, 2);
  config.give_up = [&] { return is_over.load() ? Status(Code::kAborted, "it is over") : Status(); };
  std::vector<Outcome> host;
  std::jthread thread([&] { host = Run({config}); });
  Reactor reactor;
  ConnectPlan plan;
  plan.hello = RendezvousHello(Config(1, 2));
  plan.key = kKey;
  plan.deadline = DeadlineAfter(kPatience);
  plan.dials.resize(1);
  ASSERT_TRUE(Resolve(config.rendezvous, plan.deadline, &plan.dials[0].endpoints).ok());
  std::vector<Stream> streams;
  ASSERT_TRUE(EstablishStreams(&reactor, plan, &streams).ok());
  const int fd = streams[0].socket.native_handle();
  const std::string join = *EncodeMessage(MessageType::kJoin, Encode(JoinMessage{2, 1, kPatience, "", "stopped"}));
  ASSERT_EQ(::send(fd, join.data(), join.size(), 0), static_cast<ssize_t>(join.size()));
  pollfd table{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&table, 1, static_cast<int>(kPatience / kMillisecond)), 1);
  is_over.store(true);
  thread.join();
  ExpectOneFailure(host, Code::kAborted, "it is over");
  EXPECT_LT(host[0].took, kPatience / 2);
}

// Rank 0 in a process of its own, which may have few descriptors.
class BootstrapDescriptorsTest : public BootstrapFixture {
 protected:
  static constexpr int kRanks = 6;
  static constexpr rlim_t kReactorAndListener = 4;

  // Runs all ranks, while rank 0 may open no more than `few` descriptors. Returns what it says.
  std::string Run(rlim_t few, std::vector<Outcome>* outcomes) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t host = ::fork();
    if (host == 0) {
      const DescriptorLimit limit(DescriptorLimit::Next() + few);
      BootstrapResult result;
      const std::string text = Bootstrap(Config(0, kRanks, 10 * kSecond), &result).message();
      [[maybe_unused]] const ssize_t written = ::write(ends[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    std::vector<BootstrapConfig> guests;
    for (int rank = 1; rank < kRanks; ++rank) guests.push_back(Config(rank, kRanks, 10 * kSecond));
    *outcomes = BootstrapFixture::Run(guests);
    char text[1024] = {};
    EXPECT_GE(::read(ends[0], text, sizeof text - 1), 0);
    ::close(ends[0]);
    ::waitpid(host, nullptr, 0);
    return text;
  }

  void ExpectRefusal(const std::string& text, const std::vector<Outcome>& outcomes) {
    EXPECT_NE(text.find("rank 0 has no file descriptor left"), std::string::npos) << text;
    EXPECT_NE(text.find("(EMFILE;"), std::string::npos) << text;
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status.message(), text);
      EXPECT_EQ(outcome.status.peer(), 0);
    }
  }
};

TEST_F(BootstrapDescriptorsTest, RankZeroWithoutDescriptorsNamesItselfToAll) {
  std::vector<Outcome> outcomes;
  ExpectRefusal(Run(kReactorAndListener + 2, &outcomes), outcomes);
}

// None is left for the door to which ranks come back.
TEST_F(BootstrapDescriptorsTest, RankZeroWithoutADoorNamesItselfToAll) {
  for (rlim_t left = 0; left < 3; ++left) {
    SCOPED_TRACE(testing::Message() << left << " descriptors left");
    std::vector<Outcome> outcomes;
    ExpectRefusal(Run(kReactorAndListener + kRanks - 1 + left, &outcomes), outcomes);
  }
}

}  // namespace
}  // namespace annulus
