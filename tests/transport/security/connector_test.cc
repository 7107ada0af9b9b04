// Tests of EstablishStreams: streams between ranks, and strangers of every kind that try to get in between.
#include "transport/security/connector.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <asio/local/stream_protocol.hpp>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include "base/log.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;
constexpr char kKey[] = "the key of this test";

// One rank: its reactor, its listener and, once Run, its streams.
struct Rank {
  explicit Rank(uint32_t rank, uint32_t nranks = 2, const std::string& key = kKey) {
    plan.hello = {.purpose = kRendezvousPurpose, .identity = {.job = 9}, .nranks = nranks, .rank = rank};
    plan.key = key;
    plan.deadline = DeadlineAfter(kPatience);
  }
  ~Rank() { Join(); }

  StreamEndpoint ListenAt(const StreamEndpoint& endpoint) {
    EXPECT_TRUE(Listen(&reactor, endpoint, nullptr, &listener).ok());
    plan.listener = &listener;
    return listener.local_endpoint();
  }
  StreamEndpoint ListenOn(const std::string& host) {
    StreamEndpoint endpoint;
    EXPECT_TRUE(MakeEndpoint(host, 0, &endpoint).ok());
    return ListenAt(endpoint);
  }
  void Expect(uint32_t rank, uint16_t lane = 0) { plan.expected.push_back({rank, 0, lane}); }
  void Dial(uint32_t rank, const StreamEndpoint& endpoint, uint16_t lane = 0) {
    plan.dials.push_back({{rank, 0, lane}, {endpoint}});
  }
  void Connect() { status = EstablishStreams(&reactor, plan, &streams); }
  void Start() {
    thread = std::thread([this] { Connect(); });
  }
  void Join() {
    if (thread.joinable()) thread.join();
  }

  Reactor reactor;
  StreamListener listener{reactor.context()};
  ConnectPlan plan;
  Status status;
  std::vector<Stream> streams;
  std::thread thread;
};

// A client that does not keep to the rules.
class Stranger {
 public:
  explicit Stranger(const StreamEndpoint& to) : fd_(socket(to.data()->sa_family, SOCK_STREAM, 0)) {
    EXPECT_EQ(connect(fd_, to.data(), to.size()), 0) << strerror(errno);
  }
  ~Stranger() { close(fd_); }
  void Say(const std::string& text) {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  // Waits until the other side closes.
  bool IsDropped() {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char byte;
    ssize_t got = 0;
    while ((got = recv(fd_, &byte, 1, 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

bool Mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void ExpectCarries(Stream* from, Stream* to) {
  asio::error_code error;
  from->socket.non_blocking(false, error);
  to->socket.non_blocking(false, error);
  const char text[] = "over this stream";
  char got[sizeof(text)] = {};
  EXPECT_EQ(from->socket.write_some(asio::buffer(text), error), sizeof(text)) << error.message();
  EXPECT_EQ(to->socket.read_some(asio::buffer(got), error), sizeof(text)) << error.message();
  EXPECT_STREQ(got, text);
}

class ConnectorTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ConnectorTest, EveryRankReachesEveryOtherOverSeveralLanes) {
  constexpr uint32_t kRanks = 5;
  constexpr uint16_t kLanes = 3;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<StreamEndpoint> endpoints;
  for (uint32_t i = 0; i < kRanks; ++i) {
    ranks.push_back(std::make_unique<Rank>(i, kRanks));
    endpoints.push_back(ranks[i]->ListenOn(GetParam()));
    for (uint16_t lane = 0; lane < kLanes; ++lane) {
      for (uint32_t low = 0; low < i; ++low) ranks[i]->Dial(low, endpoints[low], lane);
      for (uint32_t high = i + 1; high < kRanks; ++high) ranks[i]->Expect(high, lane);
    }
  }
  for (auto& rank : ranks) rank->Start();
  for (auto& rank : ranks) rank->Join();
  for (auto& rank : ranks) ASSERT_TRUE(rank->status.ok()) << rank->status.ToString();
  for (auto& rank : ranks) {
    ASSERT_EQ(rank->streams.size(), (kRanks - 1) * kLanes);
    size_t i = 0;
    for (const DialRequest& dial : rank->plan.dials) EXPECT_EQ(rank->streams[i++].id, dial.id);
    for (const StreamId& id : rank->plan.expected) EXPECT_EQ(rank->streams[i++].id, id);
    for (Stream& stream : rank->streams) {
      for (Stream& other : ranks[stream.id.rank]->streams) {
        const bool same = other.id.rank == rank->plan.hello.rank && other.id.lane == stream.id.lane;
        if (same) ExpectCarries(&stream, &other);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ConnectorTest, ::testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) { return std::string(info.index == 0 ? "IPv4" : "IPv6"); });

TEST(ConnectorTest, UnixSocketsServeAsWell) {
  Rank acceptor(0);
  Rank dialler(1);
  // Without a name the kernel chooses one; process numbers occur twice where sandboxes share the network.
  const StreamEndpoint at = acceptor.ListenAt(asio::local::stream_protocol::endpoint(""));
  acceptor.Expect(1);
  dialler.Dial(0, at);
  acceptor.Start();
  dialler.Connect();
  acceptor.Join();
  ASSERT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
  ExpectCarries(&acceptor.streams[0], &dialler.streams[0]);
}

TEST(ConnectorTest, ADiallerWaitsForAPeerThatStartsLater) {
  Rank late(0);
  StreamEndpoint at;
  {
    Rank probe(0);
    at = probe.ListenOn("127.0.0.1");  // Free again at the end of this block.
  }
  Rank dialler(1);
  dialler.Dial(0, at);
  dialler.Start();
  {
    Stranger refused_first(late.ListenOn("127.0.0.1"));  // Takes about as long as one refused dial.
  }
  late.listener.close();
  late.ListenAt(at);
  late.Expect(1);
  late.Connect();
  dialler.Join();
  EXPECT_TRUE(late.status.ok()) << late.status.ToString();
  EXPECT_TRUE(dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorTest, ADeadAddressAmongSeveralIsPassedOver) {
  Rank acceptor(0);
  Rank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  StreamEndpoint dead;
  {
    Rank probe(0);
    dead = probe.ListenOn("::1");
  }
  acceptor.Expect(1);
  dialler.plan.dials.push_back({{0, 0, 0}, {dead, at}});
  acceptor.Start();
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorTest, StrangersAreDroppedAndDelayNobody) {
  Rank acceptor(0);
  acceptor.plan.stranger_limit = kPatience;  // Whoever were waited for would show.
  Rank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  Stranger silent(at);
  Stranger web(at);
  web.Say("GET / HTTP/1.1\r\n" + std::string(100, 'x'));
  { Stranger scan(at); }
  Stranger half(at);
  half.Say("ANNULUS\n");
  testing::internal::CaptureStderr();
  acceptor.Start();
  EXPECT_TRUE(web.IsDropped());
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(acceptor.status.ok()) << acceptor.status.ToString();
  EXPECT_TRUE(dialler.status.ok()) << dialler.status.ToString();
  EXPECT_TRUE(silent.IsDropped());
  EXPECT_TRUE(half.IsDropped());
  EXPECT_EQ(CountOf(log, "no valid hello"), 1) << log;
}

TEST(ConnectorTest, ASlowStrangerIsDroppedWhileOthersAreAwaited) {
  Rank acceptor(0);
  acceptor.plan.stranger_limit = 30 * kMillisecond;
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  Stranger silent(at);
  EXPECT_TRUE(silent.IsDropped());
  Rank dialler(1);
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorTest, ACrowdOfSilentStrangersDoesNotKeepARankOut) {
  Rank acceptor(0);
  acceptor.plan.stranger_limit = kPatience;
  Rank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<Stranger>(at));
  acceptor.Start();
  EXPECT_TRUE(crowd[0]->IsDropped());
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorTest, ManyStrangersOfAKindAreLoggedOnceAndCounted) {
  Rank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  testing::internal::CaptureStderr();
  acceptor.Start();
  for (int i = 0; i < 5; ++i) {
    Stranger noise(at);
    noise.Say(std::string(80, 'x'));
    EXPECT_TRUE(noise.IsDropped());
  }
  Rank dialler(1);
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(log, "dropped a connection"), 1) << log;
  EXPECT_EQ(CountOf(log, "dropped 5 connections while connecting: 5 no valid hello"), 1) << log;
}

TEST(ConnectorTest, AnotherKeyIsAStrangerToTheAcceptorAndAnErrorToTheDialler) {
  Rank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  testing::internal::CaptureStderr();
  { Stranger scan(at); }  // Hides nothing: it is a stranger of another kind.
  acceptor.Start();
  Rank wrong(1, 2, "some other key");
  wrong.Dial(0, at);
  wrong.Connect();
  EXPECT_EQ(wrong.status.code(), Code::kAuth) << wrong.status.ToString();
  EXPECT_EQ(wrong.status.peer(), 0);
  Rank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(log, "(left early)") * CountOf(log, "(left without proof)"), 1) << log;
  EXPECT_TRUE(acceptor.status.ok() && right.status.ok()) << right.status.ToString();
}

TEST(ConnectorTest, ASecondProcessOfTheSameRankIsTurnedAway) {
  Rank acceptor(0, 3);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Expect(2);
  acceptor.Start();
  Rank first(1, 3);
  first.Dial(0, at);
  first.Connect();
  ASSERT_TRUE(first.status.ok()) << first.status.ToString();
  Rank second(1, 3);
  second.Dial(0, at);
  second.Connect();
  EXPECT_EQ(second.status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(second.status, "already connected to a rank 1")) << second.status.ToString();
  Rank third(2, 3);
  third.Dial(0, at);
  third.Connect();
  acceptor.Join();
  ASSERT_TRUE(acceptor.status.ok()) << acceptor.status.ToString();
  ExpectCarries(&first.streams[0], &acceptor.streams[0]);
}

TEST(ConnectorTest, AnUnexpectedLaneIsTurnedAway) {
  Rank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  Rank dialler(1);
  dialler.Dial(0, at, 7);
  dialler.Connect();
  EXPECT_TRUE(Mentions(dialler.status, "does not expect")) << dialler.status.ToString();
  Rank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok());
}

TEST(ConnectorTest, AnotherSizeOfTheJobIsToldToTheDialler) {
  Rank acceptor(0, 2);
  acceptor.plan.deadline = DeadlineAfter(kPatience);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  Rank dialler(1, 3);
  dialler.Dial(0, at);
  dialler.Connect();
  EXPECT_EQ(dialler.status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(dialler.status, "number of ranks: 2, here it is 3")) << dialler.status.ToString();
  Rank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok());
}

TEST(ConnectorTest, ATimeoutNamesEveryMissingRank) {
  Rank acceptor(2, 6);
  StreamEndpoint dead;
  {
    Rank probe(0);
    dead = probe.ListenOn("127.0.0.1");
  }
  acceptor.ListenOn("127.0.0.1");
  acceptor.Dial(0, dead);
  acceptor.Expect(3);
  acceptor.Expect(5, 0);
  acceptor.Expect(5, 1);
  acceptor.plan.deadline = DeadlineAfter(500 * kMillisecond);
  acceptor.Connect();
  EXPECT_EQ(acceptor.status.code(), Code::kTimeout);
  EXPECT_EQ(acceptor.status.peer(), 0);
  EXPECT_TRUE(Mentions(acceptor.status, "rank 0 at 127.0.0.1:")) << acceptor.status.ToString();
  EXPECT_TRUE(Mentions(
      acceptor.status,
      "nothing answers at this address: Connection refused; rank 3 has not connected; rank 5 has not connected"))
      << acceptor.status.ToString();
  EXPECT_TRUE(acceptor.streams.empty());
}

TEST(ConnectorTest, ADiallerWithoutDescriptorsNamesItsOwnLimit) {
  Rank peer(0);
  Rank rank(1);
  rank.Dial(0, peer.ListenOn("127.0.0.1"));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  rank.Connect();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(rank.status.code(), Code::kSystem);
  EXPECT_EQ(rank.status.os_errno(), EMFILE);
  EXPECT_EQ(rank.status.peer(), 1);
  EXPECT_EQ(rank.status.message(),
            "rank 1 has no file descriptor left for a socket to dial rank 0: Too many open files (EMFILE; its limit, "
            "ulimit -n, is 3)");
}

TEST(ConnectorTest, WhoeverWaitsCanBeToldToGiveUp) {
  Rank acceptor(0);
  acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  std::atomic<bool> told = false;
  acceptor.plan.give_up = [&] { return told ? Status(Code::kPeerLost, "rank 1 is known to be dead") : Status(); };
  acceptor.Start();
  told = true;
  acceptor.reactor.Wake();
  acceptor.Join();
  EXPECT_EQ(acceptor.status.code(), Code::kPeerLost);
  EXPECT_TRUE(Mentions(acceptor.status, "known to be dead"));
}

TEST(ConnectorTest, NothingToConnectIsDoneAtOnce) {
  Rank alone(0, 1);
  alone.Connect();
  EXPECT_TRUE(alone.status.ok());
}

}  // namespace
}  // namespace annulus
