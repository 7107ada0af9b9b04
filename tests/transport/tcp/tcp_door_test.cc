// Who may take the place of a link's connection: a rank that proves itself, knows the ticket and counts on. And what it
// may say then. With and without encryption.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/socket_base.hpp>
#include <atomic>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/transport/tcp/tcp_peer.h"
#include "transport/reconnect.h"

namespace annulus {
namespace {

class TcpDoorTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Open(60'000); }

  void Open(int reconnect_ms, bool same_host = true, int sockets = 1) {
    TransportConfig config = TcpConfig(0, &reactor_);
    config.settings.Set("reconnect_ms", reconnect_ms);
    config.settings.Set("tcp_sockets", sockets);
    config.settings.Set("encrypt", GetParam());
    transport_ = CreateTcpTransport(config);
    std::string blob, lanes, address;
    ASSERT_TRUE(transport_->LocalAddress(&blob).ok());
    std::istringstream(blob) >> lanes >> address >> ticket_;
    ASSERT_TRUE(ParseEndpoint(address, &door_).ok()) << blob;
    EXPECT_EQ(ticket_.size(), 64u);
    std::thread peer([&] { EXPECT_TRUE(Dial(0, kTcpKey, sockets).ok()); });
    const LinkRequest link{.peer = 1, .channel = 0, .same_host = same_host, .address = "not used by the lower rank"};
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    const Status status = transport_->Connect({&link, 1}, TcpContext(), &endpoints);
    peer.join();
    ASSERT_TRUE(status.ok()) << status.ToString();
    endpoint_ = std::move(endpoints[0]);
  }

  // Whether anybody listens where the link was made.
  bool IsOpen() {
    const int fd = socket(door_.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
    const bool open = connect(fd, door_.data(), static_cast<socklen_t>(door_.size())) == 0;
    close(fd);
    return open;
  }

  // In a thread of its own. The lanes that it dials take the place of the first ones in stream_.
  Status Dial(uint32_t connection, const Secret& key, int lanes = 1) {
    ConnectPlan plan;
    plan.hello = {.purpose = {kTcpTransport.hello_purpose, kTcpTransport.title},
                  .identity = {.job = kTcpJob},
                  .nranks = 2,
                  .rank = 1};
    plan.hello.connection = connection;
    plan.hello.encrypts = GetParam();
    plan.key = key;
    plan.deadline = DeadlineAfter(kTcpPatience);
    for (int lane = 0; lane < lanes; ++lane) plan.dials.push_back({{0, 0, static_cast<uint16_t>(lane)}, {door_}});
    std::vector<Stream> streams;
    const Status status = EstablishStreams(&peer_reactor_, plan, &streams);
    if (!status.ok()) return status;
    stream_.erase(stream_.begin(), stream_.begin() + std::min(stream_.size(), streams.size()));
    stream_.insert(stream_.begin(), std::make_move_iterator(streams.begin()), std::make_move_iterator(streams.end()));
    return status;
  }

  // The same while the endpoint makes progress.
  Status DialBeside(uint32_t connection, const Secret& key) {
    Status status;
    std::atomic<bool> done = false;
    std::thread peer([&] {
      status = Dial(connection, key);
      done = true;
    });
    while (!done) Drive();
    peer.join();
    return status;
  }

  void Drive() {
    bool moved = false;
    last_ = endpoint_->Progress(&moved);
    reactor_.WaitUntil(DeadlineAfter(kMillisecond));
  }

  // On lane 0, whose kernel has room for it.
  void Send(const std::byte* data, size_t bytes) {
    const iovec piece = {const_cast<std::byte*>(data), bytes};
    const int fd = stream_[0].socket.native_handle();
    const ssize_t sent = GetParam() ? stream_[0].seal->Send(fd, &piece, 1) : send(fd, data, bytes, MSG_NOSIGNAL);
    ASSERT_EQ(sent, static_cast<ssize_t>(bytes));
  }
  // On lane 0. Returns 0 or less when there is nothing.
  ssize_t Receive(std::byte* to, size_t bytes) {
    const iovec piece = {to, bytes};
    const int fd = stream_[0].socket.native_handle();
    return GetParam() ? stream_[0].seal->Receive(fd, &piece, 1) : recv(fd, to, bytes, MSG_DONTWAIT);
  }
  void Say(uint64_t received) {
    FrameHeader header;
    header.type = FrameType::kResume;
    header.sequence = received;
    Bytes frame(kFrameHeaderBytes);
    WriteFrameHeader(header, FrameBytes(frame.data(), kFrameHeaderBytes));
    Send(frame.data(), frame.size());
  }
  // What the endpoint says that it has received.
  uint64_t Hear() {
    Bytes frame(kFrameHeaderBytes);
    size_t got = 0;
    const Deadline deadline = DeadlineAfter(kTcpPatience);
    while (got < frame.size() && Now() < deadline) {
      const ssize_t bytes = Receive(frame.data() + got, frame.size() - got);
      if (bytes > 0) got += static_cast<size_t>(bytes);
      Drive();
    }
    FrameHeader header;
    const Status parsed =
        ParseFrameHeader(ConstFrameBytes(frame.data(), kFrameHeaderBytes), &header, FrameType::kResume);
    EXPECT_TRUE(parsed.ok()) << parsed.ToString();
    return header.sequence;
  }

  Reactor reactor_, peer_reactor_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  StreamEndpoint door_;
  std::string ticket_;
  std::vector<Stream> stream_;
  Status last_;  // What the endpoint returned last.
};

TEST_P(TcpDoorTest, OnlyWhoKnowsTheTicketAndCountsOnComesIn) {
  EXPECT_EQ(DialBeside(1, kTcpKey).code(), Code::kAuth) << "without the ticket";
  EXPECT_EQ(DialBeside(1, Secret("another key") + ticket_).code(), Code::kAuth);
  EXPECT_EQ(DialBeside(0, Secret(kTcpKey) + ticket_).code(), Code::kProtocol) << "as at the start";
  EXPECT_TRUE(DialBeside(3, Secret(kTcpKey) + ticket_).ok());
  EXPECT_EQ(DialBeside(3, Secret(kTcpKey) + ticket_).code(), Code::kProtocol) << "the same number again";
  EXPECT_EQ(DialBeside(2, Secret(kTcpKey) + ticket_).code(), Code::kProtocol) << "an earlier one";
  EXPECT_TRUE(last_.ok()) << last_.ToString();
}

TEST_P(TcpDoorTest, UnlessTheUserSaysOtherwiseTheDoorIsForOtherHosts) {
  endpoint_.reset();
  Open(kReconnectByPlace, false);
  EXPECT_TRUE(IsOpen());
  endpoint_.reset();
  Open(kReconnectByPlace, true);
  EXPECT_FALSE(IsOpen());
}

TEST_P(TcpDoorTest, TheStreamGoesOnWhereItStopped) {
  const Bytes payload = Payload(100, 1);
  const Bytes frame = Frame(0, payload);
  Send(frame.data(), 80);  // The rest is lost.
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  while (recv.arrived < 80 - kFrameHeaderBytes) Drive();
  ASSERT_TRUE(DialBeside(1, Secret(kTcpKey) + ticket_).ok());
  EXPECT_EQ(Hear(), 80u);
  Say(0);
  Send(frame.data() + 80, frame.size() - 80);
  const Deadline deadline = DeadlineAfter(kTcpPatience);
  while (recv.code == Code::kInProgress && Now() < deadline) Drive();
  ASSERT_EQ(recv.code, Code::kOk) << last_.ToString();
  EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), payload);
  EXPECT_EQ(endpoint_->stats().reconnects, 1u);
  EXPECT_EQ(endpoint_->stats().bytes_sent_again, 0u);
}

TEST_P(TcpDoorTest, WhoClaimsMoreThanWasSentBreaksTheLink) {
  ASSERT_TRUE(DialBeside(1, Secret(kTcpKey) + ticket_).ok());
  EXPECT_EQ(Hear(), 0u);
  Say(1);
  const Deadline deadline = DeadlineAfter(kTcpPatience);
  while (last_.ok() && Now() < deadline) Drive();
  EXPECT_EQ(last_.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(last_, "cannot resume: it has 1 bytes of lane 0, expected 0 to 0")) << last_.message();
}

TEST_P(TcpDoorTest, WhoSaysSomethingElseBreaksTheLink) {
  ASSERT_TRUE(DialBeside(1, Secret(kTcpKey) + ticket_).ok());
  const Bytes frame = Frame(0, {});
  Send(frame.data(), frame.size());
  const Deadline deadline = DeadlineAfter(kTcpPatience);
  while (last_.ok() && Now() < deadline) Drive();
  EXPECT_EQ(last_.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(last_, "broken frame: type is 0x1, expected 0x2")) << last_.message();
}

// What the peer sent last may be behind a resume frame that is still under way while another lane has ended.
class TcpLanesTest : public TcpDoorTest {
 protected:
  void SetUp() override { Open(2000, true, 2); }

  // The peer makes lane 0 again, as if it were broken.
  void DialLane0() {
    ASSERT_TRUE(DialBeside(1, Secret(kTcpKey) + ticket_).ok());
    EXPECT_EQ(Hear(), 0u);
  }
  void EndLane1() {
    stream_[1].socket.close();
    for (int turn = 0; turn < 20; ++turn) Drive();
  }
  void DriveWhileOk() {
    const Deadline deadline = DeadlineAfter(kTcpPatience);
    while (last_.ok() && Now() < deadline) Drive();
  }
  // The peer sends a slice over lane 0 and ends it; `recv`, which is posted, gets that.
  void ExpectLastSlice(Recv* recv) {
    const Bytes payload = Payload(100, 1);
    const Bytes frame = Frame(0, payload);
    Send(frame.data(), frame.size());
    stream_[0].socket.close();
    DriveWhileOk();
    EXPECT_EQ(recv->code, Code::kOk);
    EXPECT_EQ(Bytes(recv->data, recv->data + recv->bytes), payload);
    endpoint_->Release(recv);
  }
};

TEST_P(TcpLanesTest, TheEndOfALaneDoesNotStopTheRepairOfAnother) {
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  DialLane0();
  EndLane1();
  EXPECT_TRUE(last_.ok()) << last_.ToString();
  Say(0);
  ExpectLastSlice(&recv);
  EXPECT_EQ(last_.code(), Code::kPeerLost) << "then the link ends";
}

// A peer that leaves waits until it can send again what was lost with a lane.
TEST_P(TcpLanesTest, TheEndOfALaneDoesNotStopTheRepairOfABrokenOne) {
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  asio::error_code error;
  stream_[0].socket.set_option(asio::socket_base::linger(true, 0), error);
  stream_[0].socket.close(error);
  EndLane1();
  EXPECT_TRUE(last_.ok()) << last_.ToString();
  DialLane0();
  Say(0);
  ExpectLastSlice(&recv);
}

TEST_P(TcpLanesTest, AnEndDoesNotWaitForALaneThatThePeerHasGivenUp) {
  DialLane0();
  EndLane1();
  EXPECT_TRUE(last_.ok()) << last_.ToString();
  const Nanoseconds begin = Now();
  stream_[0].socket.close();
  DriveWhileOk();
  EXPECT_EQ(last_.code(), Code::kPeerLost) << last_.ToString();
  EXPECT_LT(Now() - begin, kSecond);
}

TEST_P(TcpLanesTest, AnEndWaitsForAResumeFrameUpToTheLimit) {
  DialLane0();
  EndLane1();
  EXPECT_TRUE(last_.ok()) << last_.ToString();
  const Nanoseconds begin = Now();
  DriveWhileOk();
  EXPECT_EQ(last_.code(), Code::kPeerLost) << last_.ToString();
  EXPECT_GE(Now() - begin, kSecond);
}

class TcpDoorLimitTest : public TcpDoorTest {
 protected:
  static constexpr int kLimitMs = 500;
  void SetUp() override { Open(kLimitMs); }
};

// It may be between two calls. The deadline of the call that waits for it is another matter.
TEST_P(TcpDoorLimitTest, WhoComesInAndSaysNothingIsWaitedFor) {
  ASSERT_TRUE(DialBeside(1, Secret(kTcpKey) + ticket_).ok());
  EXPECT_EQ(Hear(), 0u);
  const Deadline deadline = DeadlineAfter(3 * kLimitMs * kMillisecond);
  while (last_.ok() && Now() < deadline) Drive();
  EXPECT_TRUE(last_.ok()) << last_.ToString();
}

constexpr auto kName = [](const auto& info) { return info.param ? "Encrypted" : "Plain"; };
INSTANTIATE_TEST_SUITE_P(Variants, TcpDoorTest, ::testing::Bool(), kName);
INSTANTIATE_TEST_SUITE_P(Variants, TcpLanesTest, ::testing::Bool(), kName);
INSTANTIATE_TEST_SUITE_P(Variants, TcpDoorLimitTest, ::testing::Bool(), kName);

}  // namespace
}  // namespace annulus
