// Tests of a TCP link against a peer that sends anything: broken frames, odd pieces, streams that end anywhere.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/base/fastest_of.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/session/tcp_frame_writer.h"

namespace annulus {
namespace {

class TcpFramesTest : public TcpPeerTest {
 protected:
  // To a peer that reads nothing and whose buffer is small: the sends are complete, but not all of them acknowledged.
  void SendUnacknowledged() {
    const int small = 4096;
    ASSERT_EQ(setsockopt(lanes_[0].socket.native_handle(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    const Bytes data = Payload(4096, 1);
    for (int i = 0; i < 64; ++i) {
      Send send = Sending(data, 4096);
      ASSERT_TRUE(endpoint_->PostSend(&send).ok());
      ASSERT_TRUE(Until([&] { return send.code != Code::kInProgress; }));
    }
  }
};

TEST_F(TcpFramesTest, AFrameInPiecesOfAnySizeArrives) {
  Open(1);
  std::mt19937 random(5);
  Bytes stream;
  for (int i = 0; i < 40; ++i) {
    const Bytes frame = Frame(i, Payload(random() % 4097, i), i % 2 == 0);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  Recv recv;
  int received = 0;
  auto observe = [&] {
    if (recv.code == Code::kInProgress) return;
    if (recv.bytes > 0 || recv.started) {
      ASSERT_EQ(recv.code, Code::kOk);
      EXPECT_EQ(recv.tag.words[0], static_cast<uint64_t>(received));
      EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), Payload(recv.bytes, received));
      endpoint_->Release(&recv);
      ++received;
    }
    recv = Expecting(4096);
    ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  };
  for (size_t at = 0; at < stream.size();) {
    const size_t piece = std::min<size_t>(stream.size() - at, 1 + random() % (random() % 2 == 0 ? 3 : 3000));
    Say(0, Bytes(stream.begin() + at, stream.begin() + at + piece));
    at += piece;
    Progress();
    observe();
  }
  EXPECT_TRUE(Until([&] {
    observe();
    return received == 40;
  })) << received;
}

TEST_F(TcpFramesTest, AFrameThatAsksCompletesNothing) {
  Open(1);
  Bytes asks(kFrameHeaderBytes);
  TcpFrameWriter::WriteAsk(asks.data());
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  for (int i = 0; i < 30; ++i) {
    Say(0, asks);
    Progress();
  }
  EXPECT_TRUE(status_.ok()) << status_.ToString();
  EXPECT_EQ(recv.code, Code::kInProgress);
  Say(0, Frame(0, Payload(100, 1)));
  ASSERT_TRUE(Until([&] { return recv.code != Code::kInProgress; }));
  EXPECT_EQ(recv.code, Code::kOk);
  EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), Payload(100, 1));
  endpoint_->Release(&recv);
}

TEST_F(TcpFramesTest, ADamagedPayloadIsNeverDelivered) {
  Open(1);
  Bytes frame = Frame(0, Payload(1000, 1), true);
  frame[kFrameHeaderBytes + 500] ^= std::byte{4};
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Say(0, frame);
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kProtocol);
  EXPECT_EQ(status_.peer(), 1);
  EXPECT_TRUE(Mentions(status_, "payload checksum")) << status_.ToString();
  EXPECT_EQ(recv.code, Code::kProtocol);
  EXPECT_EQ(recv.arrived, 0u);
}

TEST_F(TcpFramesTest, ADamagedHeaderBreaksTheLinkNamingTheField) {
  for (const auto& [at, field] :
       {std::pair<size_t, const char*>{1, "magic"}, {4, "version"}, {10, "header checksum"}}) {
    Open(1);
    Bytes frame = Frame(0, Payload(10, 1));
    frame[at] ^= std::byte{0x40};
    Say(0, frame);
    ASSERT_TRUE(UntilFailed());
    EXPECT_EQ(status_.code(), Code::kProtocol);
    EXPECT_TRUE(Mentions(status_, field)) << status_.ToString();
    EXPECT_TRUE(Mentions(status_, "rank 1")) << status_.ToString();
    status_ = Status();
  }
}

TEST_F(TcpFramesTest, AGiantLengthIsRefusedAtItsHeader) {
  Open(1);
  FrameHeader header;
  header.bytes = 0xfffffff0;
  Bytes frame(kFrameHeaderBytes);
  WriteFrameHeader(header, FrameBytes(frame.data(), kFrameHeaderBytes));
  Say(0, frame);
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "payload length is 4294967280")) << status_.ToString();
}

TEST_F(TcpFramesTest, ASliceThatDoesNotFitBreaksTheLink) {
  Open(1);
  Recv recv = Expecting(100);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Say(0, Frame(0, Payload(101, 1)));
  ASSERT_TRUE(UntilFailed());
  EXPECT_TRUE(Mentions(status_, "101 bytes came where at most 100 fit")) << status_.ToString();
  EXPECT_EQ(recv.bytes, 101u);
  EXPECT_EQ(recv.tag.words[0], 0u);
  EXPECT_TRUE(recv.started);
}

TEST_F(TcpFramesTest, AWrongSequenceNumberBreaksTheLink) {
  Open(1);
  Say(0, Frame(1, Payload(10, 1)));
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "sequence number is 1, expected 0")) << status_.ToString();
}

TEST_F(TcpFramesTest, ASequenceNumberThatComesTwiceBreaksTheLink) {
  Open(2);
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Bytes half = Frame(0, Payload(1000, 1));
  half.resize(500);
  Say(0, half);
  ASSERT_TRUE(Until([&] { return recv.started; }));
  Say(1, Frame(0, Payload(10, 1)));
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "came twice")) << status_.ToString();
}

TEST_F(TcpFramesTest, ASequenceNumberFarAheadBreaksTheLink) {
  Open(2);
  Say(0, Frame(uint64_t{1} << 40, Payload(10, 1)));
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kProtocol);
}

TEST_F(TcpFramesTest, SlicesOfUnevenLanesCompleteInOrder) {
  Open(2);
  Recv recvs[3];
  for (Recv& recv : recvs) {
    recv = Expecting(4096);
    ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  }
  Say(1, Frame(1, Payload(100, 1)));
  Say(1, Frame(2, Payload(200, 2)));
  ASSERT_TRUE(Until([&] { return recvs[2].arrived == 200; }));
  EXPECT_EQ(recvs[1].code, Code::kInProgress);
  EXPECT_EQ(recvs[2].code, Code::kInProgress);
  Say(0, Frame(0, Payload(300, 0)));
  ASSERT_TRUE(Until([&] { return recvs[2].code == Code::kOk; }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Bytes(recvs[i].data, recvs[i].data + recvs[i].bytes), Payload(recvs[i].bytes, i));
    endpoint_->Release(&recvs[i]);
  }
}

TEST_F(TcpFramesTest, AStreamCutWithinAFrameLosesThePeer) {
  Open(1);
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Bytes frame = Frame(0, Payload(1000, 1));
  frame.resize(700);
  Say(0, frame);
  Hang(0);
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kPeerLost);
  EXPECT_EQ(status_.peer(), 1);
  EXPECT_TRUE(Mentions(status_, "rank 1 closed its connection, in the middle of a slice (tcp lo, 127.0.0.1:"))
      << status_.ToString();
  EXPECT_EQ(recv.code, Code::kPeerLost);
}

TEST_F(TcpFramesTest, AResetLosesThePeerWithItsErrno) {
  Open(1);
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Reset(0);
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kPeerLost);
  EXPECT_EQ(status_.os_errno(), ECONNRESET);
}

// What was sent to a peer that is gone is never acknowledged; nobody must wait for that.
TEST_F(TcpFramesTest, CloseDoesNotWaitForAPeerThatEnds) {
  // Well below the time that a close waits for a living peer.
  constexpr Nanoseconds kLimit = 100 * kMillisecond;
  for (const bool resets : {false, true}) {
    SCOPED_TRACE(resets ? "reset" : "end");
    const Nanoseconds took = FastestOf(5, kLimit, [&] {
      lanes_.clear();
      Open(1);
      SendUnacknowledged();
      const Nanoseconds start = Now();
      EXPECT_FALSE(endpoint_->Close()) << "nothing to wait for";
      resets ? Reset(0) : Hang(0);
      while (!endpoint_->Close()) {
      }
      return Now() - start;
    });
    EXPECT_LT(took, kLimit);
  }
}

TEST_F(TcpFramesTest, DataBeforeTheEndOfTheStreamIsDelivered) {
  Open(2);
  Say(0, Frame(0, Payload(100, 0)));
  Say(1, Frame(1, Payload(100, 1)));
  Hang(0);
  Hang(1);
  Rounds();
  EXPECT_TRUE(status_.ok()) << "the end overtook the data";
  for (int i = 0; i < 2; ++i) {
    Recv recv = Expecting(4096);
    ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
    ASSERT_TRUE(Until([&] { return recv.code != Code::kInProgress; }));
    ASSERT_EQ(recv.code, Code::kOk) << i;
    EXPECT_EQ(Bytes(recv.data, recv.data + recv.bytes), Payload(100, i));
    endpoint_->Release(&recv);
  }
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kPeerLost);
}

TEST_F(TcpFramesTest, OneLanesEndHalfClosesTheOthersAndEndsTheLink) {
  Open(2);
  Recv recv = Expecting(4096);
  ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
  Hang(0);
  EXPECT_TRUE(Hear(1, 1).empty()) << "the living lane was not told";
  EXPECT_TRUE(status_.ok()) << "the living lane may still bring the slice";
  Hang(1);
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(status_.code(), Code::kPeerLost);
  EXPECT_EQ(recv.code, Code::kPeerLost);
}

TEST_F(TcpFramesTest, PendingSendsDoNotWaitForUnwantedData) {
  Open(1);
  Say(0, Frame(0, Payload(100, 0)));  // Nobody will post a receive for it.
  Rounds();
  const Bytes data = Payload(size_t{64} << 20, 3);  // More than socket buffers hold.
  Send send = Sending(data, static_cast<uint32_t>(data.size()));
  ASSERT_TRUE(endpoint_->PostSend(&send).ok());
  Rounds();
  Reset(0);
  ASSERT_TRUE(Until([&] { return send.code != Code::kInProgress; }));
  EXPECT_EQ(send.code, Code::kPeerLost);
}

TEST_F(TcpFramesTest, AReadyPartIsSentAtOnce) {
  Open(1);
  const Bytes data = Payload(1000, 3);
  Send send = Sending(data, 300);
  send.tag = {{7, 8, 9, 10}};
  ASSERT_TRUE(endpoint_->PostSend(&send).ok());
  const Bytes first = Hear(0, kFrameHeaderBytes + 300);
  ASSERT_EQ(first.size(), kFrameHeaderBytes + 300);
  FrameHeader header;
  ASSERT_TRUE(ParseFrameHeader(ConstFrameBytes(first.data(), kFrameHeaderBytes), &header).ok());
  EXPECT_EQ(header.bytes, 1000u);
  EXPECT_EQ(header.tag, send.tag);
  send.ready = 1000;
  EXPECT_EQ(Hear(0, 700), Bytes(data.begin() + 300, data.end()));
  EXPECT_EQ(send.code, Code::kOk);
}

TEST_F(TcpFramesTest, WithChecksumsASliceIsSentWhole) {
  Open(1, true);
  const Bytes data = Payload(1000, 3);
  Send send = Sending(data, 300);
  ASSERT_TRUE(endpoint_->PostSend(&send).ok());
  Rounds();
  std::byte byte;
  EXPECT_EQ(recv(lanes_[0].socket.native_handle(), &byte, 1, MSG_DONTWAIT), -1) << "sent what it cannot checksum yet";
  send.ready = 1000;
  Bytes expected = Frame(0, data, true);
  FrameHeader header;
  header.flags = kFrameChecksummed;
  header.bytes = 1000;
  header.payload_crc = Crc32c(data);
  WriteFrameHeader(header, FrameBytes(expected.data(), kFrameHeaderBytes));
  EXPECT_EQ(Hear(0, kFrameHeaderBytes + 1000), expected);
}

TEST_F(TcpFramesTest, RandomBytesNeverDoMoreThanBreakTheLink) {
  std::mt19937 random(9);
  for (int round = 0; round < 30; ++round) {
    Open(1 + round % 2, round % 3 == 0);
    std::vector<Recv> recvs(4);
    for (Recv& recv : recvs) {
      recv = Expecting(4096);
      ASSERT_TRUE(endpoint_->PostRecv(&recv).ok());
    }
    Bytes stream;
    for (int i = 0; i < 4; ++i) {
      const Bytes frame = Frame(i, Payload(random() % 3000, i), true);
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    for (int i = 0; i < 8; ++i) stream[random() % stream.size()] ^= static_cast<std::byte>(1 + random() % 255);
    Say(0, stream);
    for (size_t lane = 0; lane < lanes_.size(); ++lane) Hang(static_cast<int>(lane));
    ASSERT_TRUE(UntilFailed());
    for (int i = 0; i < 4; ++i) {
      ASSERT_NE(recvs[i].code, Code::kInProgress);
      if (recvs[i].code == Code::kOk) {
        EXPECT_EQ(Bytes(recvs[i].data, recvs[i].data + recvs[i].bytes), Payload(recvs[i].bytes, i));
      }
    }
    status_ = Status();
  }
}

}  // namespace
}  // namespace annulus
