// TCP: the short way of small slices, beside posted ones, and against a peer that sends anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/session/tcp_session.h"

namespace annulus {
namespace {

constexpr uint32_t kSlotBytes = 4096;

Tag TagOf(uint64_t number) { return {{number, ~number, 1, 2}}; }

class TcpShortTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Make(1); }
  void Make(int lanes, size_t slot_bytes = kSlotBytes) {
    const bool checksum = GetParam();
    const TransportLink::MakeTransport make = [lanes, checksum](TransportConfig config) {
      config.settings.Set("tcp_sockets", lanes);
      config.settings.Set("checksum", checksum);
      return CreateTcpTransport(config);
    };
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = slot_bytes, .slots = 4});
    ASSERT_NE(link_, nullptr);
  }

  Endpoint& end(int side) { return link_->end(side); }
  ShortPath& path(int side) { return *end(side).shortcuts().short_path; }
  Status Progress(int side) {
    bool moved = false;
    return end(side).Progress(&moved);
  }
  Status SendShort(uint64_t number, uint32_t bytes) {
    return path(0).SendCopy(TagOf(number), Payload(bytes, static_cast<int>(number)).data(), bytes);
  }
  // Peeks until there is a slice, as whoever waits for one does.
  bool Await(ShortPath::Slice* slice) {
    const Deadline deadline = DeadlineAfter(kTcpPatience);
    while (!path(1).Peek(slice)) {
      if (!Progress(1).ok() || !Progress(0).ok() || Now() > deadline) return false;
    }
    return true;
  }
  void ExpectShort(uint64_t number, uint32_t bytes) {
    ShortPath::Slice slice;
    ASSERT_TRUE(Await(&slice)) << number;
    EXPECT_EQ(slice.tag, TagOf(number));
    ASSERT_EQ(slice.bytes, bytes);
    ASSERT_NE(slice.data, nullptr);
    EXPECT_EQ(Bytes(slice.data, slice.data + bytes), Payload(bytes, static_cast<int>(number)));
    path(1).Pop();
  }

  std::unique_ptr<ContractLink> link_;
};

TEST_P(TcpShortTest, EverySizeArrives) {
  Make(1, 64 * 1024);
  ASSERT_EQ(end(0).limits().short_bytes, TcpSession::kMostShortBytes);
  uint64_t number = 0;
  for (int round = 0; round < 100; ++round) {
    for (const uint32_t bytes : {0u, 1u, 8u, 1000u, TcpSession::kMostShortBytes}) {
      ASSERT_TRUE(SendShort(++number, bytes).ok()) << number;
      ExpectShort(number, bytes);
    }
  }
  ShortPath::Slice none;
  EXPECT_FALSE(path(1).Peek(&none));
}

TEST_P(TcpShortTest, SeveralSocketsHaveNoShortWay) {
  Make(2);
  EXPECT_EQ(end(0).limits().short_bytes, 0u);
  EXPECT_EQ(end(0).shortcuts().short_path, nullptr);
}

TEST_P(TcpShortTest, WithoutRoomItBlocksAndAllArrives) {
  uint64_t sent = 0;
  while (SendShort(sent + 1, 4000).ok()) ASSERT_LT(++sent, 1'000'000u);
  EXPECT_TRUE(SendShort(sent + 1, 4000).would_block());
  EXPECT_FALSE(path(0).Flush());
  for (uint64_t number = 1; number <= sent; ++number) ASSERT_NO_FATAL_FAILURE(ExpectShort(number, 4000));
  EXPECT_TRUE(path(0).Flush());
  ASSERT_TRUE(SendShort(++sent, 8).ok());
  ExpectShort(sent, 8);
}

TEST_P(TcpShortTest, PostedAndShortSlicesKeepOneOrder) {
  const Bytes data = Payload(500, 1);
  Send send = Sending(data, 100);
  send.tag = TagOf(1);
  ASSERT_TRUE(end(0).PostSend(&send).ok());
  EXPECT_TRUE(SendShort(2, 8).would_block()) << "overtook a slice that is not ready";
  send.ready = 500;
  ASSERT_TRUE(Progress(0).ok());
  ASSERT_TRUE(SendShort(2, 8).ok());
  ExpectShort(1, 500);  // A posted slice may be taken the short way,
  ShortPath::Slice slice;
  ASSERT_TRUE(Await(&slice));
  ASSERT_TRUE(Progress(1).ok());
  EXPECT_EQ(slice.tag, TagOf(2));
  EXPECT_EQ(Bytes(slice.data, slice.data + 8), Payload(8, 2)) << "stays while the link makes progress";
  Recv recvs[2] = {Expecting(kSlotBytes), Expecting(kSlotBytes)};
  for (Recv& recv : recvs) ASSERT_TRUE(end(1).PostRecv(&recv).ok());
  EXPECT_FALSE(path(1).Peek(&slice)) << "taken from under a receive";
  ASSERT_TRUE(SendShort(3, 9).ok());
  const Deadline deadline = DeadlineAfter(kTcpPatience);  // and a short one by a receive.
  while (recvs[1].code == Code::kInProgress && Now() < deadline) ASSERT_TRUE(Progress(1).ok());
  ASSERT_EQ(recvs[0].code, Code::kOk);
  ASSERT_EQ(recvs[1].code, Code::kOk);
  EXPECT_EQ(recvs[0].tag, TagOf(2));
  EXPECT_EQ(recvs[1].tag, TagOf(3));
  for (Recv& recv : recvs) end(1).Release(&recv);
  ASSERT_TRUE(SendShort(4, 9).ok());
  ExpectShort(4, 9);
}

// One side of a ping-pong that sleeps whenever it can; returns the rounds that it finished.
int Play(Endpoint* end, Reactor* reactor, int rounds, bool begins) {
  ShortPath* const path = end->shortcuts().short_path;
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (int round = 0; round < rounds; ++round) {
    const uint32_t bytes = round % 3 == 0 ? 8 : 3000;
    bool sent = false;
    bool received = false;
    while (!(sent && received)) {
      if (Now() > deadline) return round;
      ShortPath::Slice slice;
      const bool had_received = received;
      if (!sent && (begins || received)) sent = path->SendCopy(TagOf(round), Payload(bytes, round).data(), bytes).ok();
      if (!received && path->Peek(&slice)) {
        if (slice.tag != TagOf(round) || std::memcmp(slice.data, Payload(bytes, round).data(), bytes) != 0) return -1;
        path->Pop();
        received = true;
      }
      bool moved = false;
      if (!end->Progress(&moved).ok()) return -2;
      if (received == had_received && !(sent && received) && !moved && end->Arm()) reactor->WaitUntil(deadline);
    }
  }
  return rounds;
}

TEST_P(TcpShortTest, TwoSleepersPlayPingPong) {
  constexpr int kRounds = 2000;
  int finished[2] = {};
  std::thread other([&] { finished[1] = Play(&end(1), link_->reactor(1), kRounds, false); });
  finished[0] = Play(&end(0), link_->reactor(0), kRounds, true);
  other.join();
  EXPECT_EQ(finished[0], kRounds);
  EXPECT_EQ(finished[1], kRounds);
}

TEST_P(TcpShortTest, WhatWasSentBeforeTheCloseIsDeliveredFirst) {
  ASSERT_TRUE(SendShort(1, 8).ok());
  ASSERT_TRUE(SendShort(2, 900).ok());
  std::thread closer([&] { CloseWholly(end(0)); });
  const Deadline deadline = DeadlineAfter(kTcpPatience);
  ShortPath::Slice slice;
  for (uint64_t number = 1; number <= 2; ++number) {
    while (!path(1).Peek(&slice) && Now() < deadline) EXPECT_TRUE(Progress(1).ok());
    EXPECT_EQ(slice.tag, TagOf(number));
    EXPECT_TRUE(Progress(1).ok()) << "still held";
    path(1).Pop();
  }
  Status status;
  while (status.ok() && Now() < deadline) {
    EXPECT_FALSE(path(1).Peek(&slice));
    status = Progress(1);
  }
  closer.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(path(1).SendCopy(TagOf(1), nullptr, 0).code(), Code::kPeerLost);
  EXPECT_EQ(SendShort(3, 8).code(), Code::kAborted);
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpShortTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "checksummed" : "plain"; });

class TcpShortPeerTest : public TcpPeerTest {
 protected:
  ShortPath& path() { return *endpoint_->shortcuts().short_path; }
  // Peeks and makes progress until the link fails.
  Status AwaitFailure() {
    ShortPath::Slice slice;
    EXPECT_TRUE(Until([&] { return !status_.ok() || path().Peek(&slice); }));
    EXPECT_FALSE(path().Peek(&slice));
    return status_;
  }
};

TEST_F(TcpShortPeerTest, AFrameInPiecesArrivesWhole) {
  Open(1);
  const Bytes payload = Payload(3000, 1);
  const Bytes frame = Frame(0, payload);
  ShortPath::Slice slice;
  for (size_t at = 0; at < frame.size(); at += 7) {
    Say(0, Bytes(frame.begin() + at, frame.begin() + std::min(at + 7, frame.size())));
    const bool is_last = at + 7 >= frame.size();
    ASSERT_FALSE(!is_last && path().Peek(&slice)) << at;
    Progress();
  }
  ASSERT_TRUE(Until([&] { return path().Peek(&slice); }));
  EXPECT_EQ(Bytes(slice.data, slice.data + slice.bytes), payload);
  path().Pop();
}

TEST_F(TcpShortPeerTest, ALargeSliceIsSeenAndLeftToAReceive) {
  Open(1);
  Say(0, Frame(0, Payload(TcpSession::kMostShortBytes + 1, 1)));
  ShortPath::Slice slice;
  ASSERT_TRUE(Until([&] { return path().Peek(&slice); }));
  EXPECT_EQ(slice.bytes, TcpSession::kMostShortBytes + 1);
  EXPECT_EQ(slice.data, nullptr);
}

TEST_F(TcpShortPeerTest, BrokenFramesBreakTheLinkAndAreNamed) {
  Open(1);
  Say(0, Frame(1, Payload(8, 1)));
  EXPECT_EQ(AwaitFailure().code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "sequence number")) << status_.ToString();
  status_ = Status();
  Open(1);
  Bytes frame = Frame(0, Payload(8, 1), true);
  frame.back() ^= std::byte{1};
  Say(0, frame);
  EXPECT_EQ(AwaitFailure().code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "payload checksum")) << status_.ToString();
  status_ = Status();
  Open(1);
  frame = Frame(0, Payload(8, 1));
  frame[0] ^= std::byte{1};
  Say(0, frame);
  EXPECT_EQ(AwaitFailure().code(), Code::kProtocol);
  EXPECT_TRUE(Mentions(status_, "magic")) << status_.ToString();
}

TEST_F(TcpShortPeerTest, ASliceCutShortIsNeverSeen) {
  Open(1);
  Bytes frame = Frame(0, Payload(100, 1));
  frame.pop_back();
  Say(0, frame);
  ShortPath::Slice slice;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(path().Peek(&slice));
  Hang(0);
  EXPECT_EQ(AwaitFailure().code(), Code::kPeerLost);
  EXPECT_TRUE(Mentions(status_, "in the middle of a slice")) << status_.ToString();
}

TEST_F(TcpShortPeerTest, ASendToAPeerThatIsGoneSaysSo) {
  Open(1);
  Reset(0);
  const Bytes data = Payload(8, 1);
  Status sent;
  ASSERT_TRUE(Until([&] {
    sent = path().SendCopy(TagOf(1), data.data(), 8);
    return !sent.ok();
  }));
  EXPECT_EQ(sent.code(), Code::kPeerLost) << sent.ToString();
}

}  // namespace
}  // namespace annulus
