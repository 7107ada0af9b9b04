// A connection that is made again after its link has begun to end: it brings what the peer still has to say, and
// nothing is written to it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "tests/transport/tcp/cut_wire.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/session/tcp_session.h"

namespace annulus {
namespace {

class TcpSessionEndTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr uint32_t kBytes = 8000;  // Too many to be copied when they are sent.

  // Connects that lane of both sessions.
  void Connect(int lane, std::vector<SealedSocket>* sockets) {
    wires_[lane] = std::make_unique<CutWire>(&context_, false);
    for (const int side : {0, 1}) sockets[side].push_back(std::move(wires_[lane]->sockets[side]));
  }
  void SetUp() override {
    std::vector<SealedSocket> sockets[2];
    for (int lane = 0; lane < GetParam(); ++lane) Connect(lane, sockets);
    const TcpSessionConfig config{.slot_bytes = 16384, .slots = 4, .retains = true};
    for (const int side : {0, 1}) sessions_[side] = std::make_unique<TcpSession>(config, std::move(sockets[side]));
  }
  void Pass(int lane, int from) {
    while (wires_[lane]->Pass(from, SIZE_MAX) > 0) continue;
  }

  asio::io_context context_;
  std::unique_ptr<CutWire> wires_[2];
  std::unique_ptr<TcpSession> sessions_[2];
};

TEST_P(TcpSessionEndTest, ALaneThatIsMadeAgainAfterTheEndIsHalfClosed) {
  TcpSession& session = *sessions_[0];
  Bytes memory = Payload(kBytes, 1);
  Bytes other_memory = Payload(kBytes, 2);
  Send lent = Sending(memory, kBytes);
  Send untaken = Sending(other_memory, kBytes);
  session.Post(&lent);
  bool moved = false;
  session.Transmit(&moved);
  ASSERT_EQ(lent.code, Code::kInProgress) << "the peer's kernel has nothing of it";
  session.Post(&untaken);
  const uint64_t received[2] = {session.Freeze(0), sessions_[1]->Freeze(0)};
  // As the endpoint does when another lane has ended.
  session.StopRetaining(&moved);
  ASSERT_EQ(lent.code, Code::kOk);
  session.ShutDownWrites();
  std::fill(memory.begin(), memory.end(), std::byte{0xdd});  // It is its owner's again.

  std::vector<SealedSocket> sockets[2];
  Connect(0, sockets);
  uint64_t again = 1;
  ASSERT_TRUE(session.Resume(0, std::move(sockets[0][0]), received[1], &again, &moved).ok());
  EXPECT_EQ(again, 0u);
  Recv recv;
  recv.capacity = kBytes;
  ASSERT_TRUE(session.Post(&recv));
  ASSERT_TRUE(session.Receive(&moved).ok());
  EXPECT_TRUE(session.Arm()) << "there is nothing to write";
  if (session.has_short_path()) {
    EXPECT_TRUE(session.FlushCopy());
  }
  std::byte byte;
  EXPECT_EQ(::recv(wires_[0]->network(0), &byte, 1, MSG_DONTWAIT), 0) << "the end, and nothing before it";

  // What the peer has to say still comes.
  ASSERT_TRUE(sessions_[1]->Resume(0, std::move(sockets[1][0]), received[0], &again, &moved).ok());
  const Bytes last = Payload(kBytes, 3);
  Send send = Sending(last, kBytes);
  sessions_[1]->Post(&send);
  sessions_[1]->Transmit(&moved);
  Pass(0, 1);
  ASSERT_TRUE(session.Receive(&moved).ok());
  ASSERT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), last);
  session.Release(&recv);
  for (auto& each : sessions_) each->FailAll(Code::kAborted);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TcpSessionEndTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace annulus
