// Tests of EstablishStreams: streams between ranks.
#include "transport/security/connector.h"

#include <gtest/gtest.h>
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
#include "tests/transport/security/connector_rank.h"

namespace annulus {
namespace {

bool Mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
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
  std::vector<std::unique_ptr<ConnectorRank>> ranks;
  std::vector<StreamEndpoint> endpoints;
  for (uint32_t i = 0; i < kRanks; ++i) {
    ranks.push_back(std::make_unique<ConnectorRank>(i, kRanks));
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
  ConnectorRank acceptor(0);
  ConnectorRank dialler(1);
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
  ConnectorRank late(0);
  StreamEndpoint at;
  {
    ConnectorRank probe(0);
    at = probe.ListenOn("127.0.0.1");  // Free again at the end of this block.
  }
  ConnectorRank dialler(1);
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
  ConnectorRank acceptor(0);
  ConnectorRank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  StreamEndpoint dead;
  {
    ConnectorRank probe(0);
    dead = probe.ListenOn("::1");
  }
  acceptor.Expect(1);
  dialler.plan.dials.push_back({{0, 0, 0}, {dead, at}});
  acceptor.Start();
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorTest, ASecondProcessOfTheSameRankIsTurnedAway) {
  ConnectorRank acceptor(0, 3);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Expect(2);
  acceptor.Start();
  ConnectorRank first(1, 3);
  first.Dial(0, at);
  first.Connect();
  ASSERT_TRUE(first.status.ok()) << first.status.ToString();
  ConnectorRank second(1, 3);
  second.Dial(0, at);
  second.Connect();
  EXPECT_EQ(second.status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(second.status, "already connected to a rank 1")) << second.status.ToString();
  ConnectorRank third(2, 3);
  third.Dial(0, at);
  third.Connect();
  acceptor.Join();
  ASSERT_TRUE(acceptor.status.ok()) << acceptor.status.ToString();
  ExpectCarries(&first.streams[0], &acceptor.streams[0]);
}

TEST(ConnectorTest, AnUnexpectedLaneIsTurnedAway) {
  ConnectorRank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  ConnectorRank dialler(1);
  dialler.Dial(0, at, 7);
  dialler.Connect();
  EXPECT_TRUE(Mentions(dialler.status, "does not expect")) << dialler.status.ToString();
  ConnectorRank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok());
}

TEST(ConnectorTest, AnotherSizeOfTheJobIsToldToTheDialler) {
  ConnectorRank acceptor(0, 2);
  acceptor.plan.deadline = DeadlineAfter(kPatience);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  ConnectorRank dialler(1, 3);
  dialler.Dial(0, at);
  dialler.Connect();
  EXPECT_EQ(dialler.status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(dialler.status, "number of ranks: 2, here it is 3")) << dialler.status.ToString();
  ConnectorRank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok());
}

TEST(ConnectorTest, ATimeoutNamesEveryMissingRank) {
  ConnectorRank acceptor(2, 6);
  StreamEndpoint dead;
  {
    ConnectorRank probe(0);
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

TEST(ConnectorTest, WhoeverWaitsCanBeToldToGiveUp) {
  ConnectorRank acceptor(0);
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
  ConnectorRank alone(0, 1);
  alone.Connect();
  EXPECT_TRUE(alone.status.ok());
}

}  // namespace
}  // namespace annulus
