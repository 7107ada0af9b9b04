// Tests of how TCP links come about: who may connect, who may not, and what is said when a rank is missing.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/tcp/tcp_peer.h"

namespace annulus {
namespace {

// One rank's transport and what came of its Connect.
struct Rank {
  explicit Rank(const TransportConfig& config) : rank(config.rank), transport(CreateTcpTransport(config)) {
    EXPECT_TRUE(transport->Probe().ok());
    EXPECT_TRUE(transport->LocalAddress(&address).ok());
  }
  ~Rank() { Join(); }
  void Link(const Rank& peer, int channel = 0) {
    links.push_back({.peer = peer.rank, .channel = channel, .same_host = true, .address = peer.address});
  }
  void Start(const ConnectContext& context = TcpContext()) {
    thread = std::thread([this, context] { status = transport->Connect(links, context, &endpoints); });
  }
  void Join() {
    if (thread.joinable()) thread.join();
  }

  int rank;
  std::unique_ptr<Transport> transport;
  std::string address;
  std::vector<LinkRequest> links;
  Status status;
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::thread thread;
};

// Sends one slice over the link and checks that it arrives.
void ExpectCarries(Endpoint* from, Endpoint* to) {
  const Bytes data = Payload(3000, from->peer());
  Send send = Sending(data, 3000);
  Recv recv = Expecting(3000);
  ASSERT_TRUE(from->PostSend(&send).ok());
  ASSERT_TRUE(to->PostRecv(&recv).ok());
  const Deadline deadline = DeadlineAfter(kTcpPatience);
  bool moved = false;
  while (recv.code == Code::kInProgress && Now() < deadline) {
    ASSERT_TRUE(from->Progress(&moved).ok());
    ASSERT_TRUE(to->Progress(&moved).ok());
  }
  ASSERT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), data);
  to->Release(&recv);
}

class TcpConnectTest : public ::testing::Test {
 protected:
  Rank& Add(const TransportConfig& config) { return *ranks_.emplace_back(std::make_unique<Rank>(config)); }
  Rank& Add(int rank, int nranks = 2) { return Add(TcpConfig(rank, &reactors_[rank], nranks)); }
  // Links both ranks of a pair and connects.
  void ConnectPair() {
    ranks_[0]->Link(*ranks_[1]);
    ranks_[1]->Link(*ranks_[0]);
    for (auto& rank : ranks_) rank->Start();
    for (auto& rank : ranks_) rank->Join();
  }

  Reactor reactors_[5];
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(TcpConnectTest, AMeshOfRanksAndChannelsConnects) {
  constexpr int kRanks = 5;
  constexpr int kChannels = 2;
  for (int i = 0; i < kRanks; ++i) {
    TransportConfig config = TcpConfig(i, &reactors_[i], kRanks);
    config.settings.Set("tcp_sockets", 1 + i % 3);  // Both ends use what the lower rank says.
    Add(config);
  }
  for (auto& rank : ranks_) {
    for (int channel = 0; channel < kChannels; ++channel) {
      for (auto& peer : ranks_) {
        if (peer != rank) rank->Link(*peer, channel);
      }
    }
  }
  for (auto& rank : ranks_) rank->Start();
  for (auto& rank : ranks_) rank->Join();
  for (auto& rank : ranks_) ASSERT_TRUE(rank->status.ok()) << rank->status.ToString();
  auto end = [&](int rank, int peer, int channel) {
    return ranks_[rank]->endpoints[channel * (kRanks - 1) + (peer < rank ? peer : peer - 1)].get();
  };
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < kRanks; ++b) {
      for (int channel = 0; channel < kChannels && a != b; ++channel) {
        ASSERT_EQ(end(a, b, channel)->peer(), b);
        ExpectCarries(end(a, b, channel), end(b, a, channel));
      }
    }
  }
}

TEST_F(TcpConnectTest, StraysAtTheListenerDoNotDisturb) {
  Rank& low = Add(0);
  Add(1);
  int strays[4];
  const StreamEndpoint at = EndpointOfBlob(low.address);
  for (int& stray : strays) {
    stray = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(stray, at.data(), at.size()), 0);
  }
  const std::string web = "GET / HTTP/1.1\r\nHost: somewhere\r\n" + std::string(80, '.');
  EXPECT_GT(send(strays[0], web.data(), web.size(), MSG_NOSIGNAL), 0);
  close(strays[1]);
  EXPECT_GT(send(strays[2], web.data(), 5, MSG_NOSIGNAL), 0);  // And then nothing; strays[3] says nothing at all.
  ConnectPair();
  for (int i : {0, 2, 3}) close(strays[i]);
  ASSERT_TRUE(ranks_[0]->status.ok() && ranks_[1]->status.ok()) << ranks_[0]->status.ToString();
  ExpectCarries(ranks_[0]->endpoints[0].get(), ranks_[1]->endpoints[0].get());
}

TEST_F(TcpConnectTest, AWrongKeyIsToldToTheDiallerAndKeptOutByTheAcceptor) {
  Add(0);
  TransportConfig wrong = TcpConfig(1, &reactors_[1]);
  wrong.job_key = "a key that nobody else has";
  Add(wrong);
  ranks_[0]->Link(*ranks_[1]);
  ranks_[1]->Link(*ranks_[0]);
  ranks_[0]->Start(TcpContext(300 * kMillisecond));
  ranks_[1]->Start();
  for (auto& rank : ranks_) rank->Join();
  EXPECT_EQ(ranks_[1]->status.code(), Code::kAuth) << ranks_[1]->status.ToString();
  EXPECT_EQ(ranks_[1]->status.peer(), 0);
  EXPECT_EQ(ranks_[0]->status.code(), Code::kTimeout);
  EXPECT_EQ(ranks_[0]->status.peer(), 1);
  EXPECT_TRUE(Mentions(ranks_[0]->status, "rank 1 has not connected")) << ranks_[0]->status.ToString();
  EXPECT_TRUE(ranks_[0]->endpoints.empty());
}

TEST_F(TcpConnectTest, AnotherJobsRankIsKeptOut) {
  Add(0);
  Add(1);
  ranks_[0]->Link(*ranks_[1]);
  ranks_[1]->Link(*ranks_[0]);
  ConnectContext other = TcpContext();
  other.identity.job = kTcpJob + 1;
  ranks_[0]->Start(TcpContext(300 * kMillisecond));
  ranks_[1]->Start(other);
  for (auto& rank : ranks_) rank->Join();
  EXPECT_EQ(ranks_[1]->status.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(ranks_[1]->status, "job id")) << ranks_[1]->status.ToString();
  EXPECT_EQ(ranks_[0]->status.code(), Code::kTimeout);
}

TEST_F(TcpConnectTest, GivingUpEndsConnect) {
  Add(0);
  Add(1);
  ranks_[0]->Link(*ranks_[1]);
  ConnectContext context = TcpContext();
  context.give_up = [] { return Status(Code::kAborted, "the job is over"); };
  ranks_[0]->Start(context);
  reactors_[0].Wake();
  ranks_[0]->Join();
  EXPECT_EQ(ranks_[0]->status.code(), Code::kAborted);
}

TEST_F(TcpConnectTest, ABrokenAddressNamesItsRank) {
  Add(0);
  Add(1);
  for (const char* address :
       {"", "1", "0 127.0.0.1:5", "999 127.0.0.1:5", "x 127.0.0.1:5", "1 somewhere:5", "1 127.0.0.1:0"}) {
    ranks_[1]->links = {{.peer = 0, .channel = 0, .same_host = true, .address = address}};
    ranks_[1]->Start();
    ranks_[1]->Join();
    EXPECT_EQ(ranks_[1]->status.code(), Code::kProtocol) << address;
    EXPECT_EQ(ranks_[1]->status.peer(), 0);
  }
}

TEST_F(TcpConnectTest, AnInterfaceMayBeNamed) {
  for (int i = 0; i < 2; ++i) {
    TransportConfig config = TcpConfig(i, &reactors_[i]);
    config.settings.Set("interface_name", "lo");
    config.local_host = i == 0 ? "10.255.255.1" : "";  // Not an address of this host: the interface counts.
    Add(config);
    EXPECT_TRUE(IsLoopback(EndpointOfBlob(ranks_[i]->address)));
  }
  ConnectPair();
  ASSERT_TRUE(ranks_[0]->status.ok() && ranks_[1]->status.ok()) << ranks_[1]->status.ToString();
  EXPECT_NE(ranks_[0]->endpoints[0]->Describe().find("tcp lo, 127.0.0.1:"), std::string::npos)
      << ranks_[0]->endpoints[0]->Describe();
}

TEST_F(TcpConnectTest, AnUnknownInterfaceMakesTheTransportUnusable) {
  TransportConfig config = TcpConfig(0, &reactors_[0]);
  config.settings.Set("interface_name", "no-such-if0");
  const Status status = CreateTcpTransport(config)->Probe();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(Mentions(status, "no-such-if0")) << status.ToString();
}

}  // namespace
}  // namespace annulus
