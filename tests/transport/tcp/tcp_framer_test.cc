// TcpFrameWriter and TcpFrameReader, one against the other, without sockets: whatever pieces a stream is written and
// read in, slices come out as they went in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/transport/tcp/tcp_peer.h"
#include "transport/tcp/session/tcp_frame_reader.h"
#include "transport/tcp/session/tcp_frame_writer.h"

namespace annulus {
namespace {

constexpr uint32_t kMostShort = 1000;

// Writes up to `most` bytes of what is ready behind `stream`, and counts the sends whose last byte that was.
int WriteTo(TcpFrameWriter* writer, size_t most, Bytes* stream) {
  IoList list;
  writer->List(&list);
  size_t bytes = std::min(most, list.bytes());
  size_t left = bytes;
  for (int i = 0; i < list.count() && left > 0; ++i) {
    const iovec& piece = list.pieces()[i];
    const size_t taken = std::min(left, piece.iov_len);
    const std::byte* const begin = static_cast<const std::byte*>(piece.iov_base);
    stream->insert(stream->end(), begin, begin + taken);
    left -= taken;
  }
  int whole = 0;
  while (writer->TakeWritten(&bytes) != nullptr) ++whole;
  return whole;
}

// Moves up to `most` bytes of `stream`, from *begin on, to where the reader wants them.
void ReadFrom(const Bytes& stream, size_t* begin, size_t most, TcpFrameReader* reader, bool whole = false) {
  IoList list;
  reader->ListRoom(SIZE_MAX, whole, &list);
  const size_t bytes = std::min({most, list.bytes(), stream.size() - *begin});
  size_t at = 0;
  for (int i = 0; i < list.count(); ++i) {
    const size_t taken = std::min(bytes - at, list.pieces()[i].iov_len);
    if (taken > 0) std::memcpy(list.pieces()[i].iov_base, stream.data() + *begin + at, taken);
    at += taken;
  }
  *begin += bytes;
  bool moved = false;
  reader->Fill(bytes, &moved);
}

class TcpFramerTest : public ::testing::TestWithParam<bool> {
 protected:
  // Takes one frame, whose number is `sequence`, out of stream_; reads at most `most` bytes at a time.
  void ExpectFrame(uint64_t sequence, const Bytes& payload, size_t most) {
    Bytes memory(payload.size());
    Recv recv;
    recv.data = memory.data();
    bool moved = false;
    for (int reads = 0; reads < 100'000; ++reads) {
      ASSERT_TRUE(reader_.ReadHeader().ok());
      if (reader_.lacks_receive()) {
        ASSERT_EQ(reader_.header().sequence, sequence);
        ASSERT_EQ(reader_.header().bytes, payload.size());
        reader_.SetReceive(&recv);
      }
      if (reader_.has_header()) reader_.MovePayload(&moved);
      if (reader_.has_header() && reader_.payload_is_whole()) break;
      ASSERT_LT(read_, stream_.size());
      ReadFrom(stream_, &read_, most, &reader_);
      EXPECT_TRUE(!GetParam() || recv.arrived == 0) << "not verified yet";
    }
    Recv* finished = nullptr;
    ASSERT_TRUE(reader_.Finish(&finished).ok());
    EXPECT_EQ(finished, &recv);
    EXPECT_EQ(recv.arrived, payload.size());
    EXPECT_EQ(memory, payload);
  }

  TcpFrameWriter writer_{GetParam()};
  TcpFrameReader reader_{kMostShort};
  Bytes stream_;     // What was written.
  size_t read_ = 0;  // Bytes of it that were read.
};

TEST_P(TcpFramerTest, WhatIsWrittenAndReadInAnyPiecesComesOutWhole) {
  std::mt19937 random(7);
  constexpr int kFrames = 300;
  std::vector<Bytes> payloads;
  std::vector<Send> sends(kFrames);
  for (int i = 0; i < kFrames; ++i) {
    payloads.push_back(Payload(random() % 3 == 0 ? random() % 20'000 : random() % 100, i));
    sends[i] = Sending(payloads[i], static_cast<uint32_t>(payloads[i].size()));
  }
  int added = 0;
  int written = 0;
  while (written < kFrames) {
    while (added < kFrames && writer_.MayAdd(sends[added])) writer_.Add(&sends[added], added), ++added;
    written += WriteTo(&writer_, 1 + random() % (random() % 2 == 0 ? 50 : 50'000), &stream_);
  }
  EXPECT_TRUE(writer_.empty());
  EXPECT_EQ(writer_.unwritten_bytes(), 0u);
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(i, payloads[i], 1 + random() % (random() % 2 == 0 ? 50 : 50'000)));
  }
  EXPECT_EQ(read_, stream_.size());
  EXPECT_FALSE(reader_.within_frame());
}

TEST_P(TcpFramerTest, NothingIsTakenBehindASendThatIsNotReady) {
  const Bytes data = Payload(1000, 1);
  Send slow = Sending(data, 300);
  Send next = Sending(data, 1000);
  const bool checksum = GetParam();
  EXPECT_EQ(writer_.MayAdd(slow), !checksum) << "its header has the checksum of all of it";
  if (checksum) return;
  writer_.Add(&slow, 0);
  EXPECT_FALSE(writer_.MayAdd(next));
  EXPECT_EQ(WriteTo(&writer_, SIZE_MAX, &stream_), 0);
  EXPECT_EQ(stream_.size(), kFrameHeaderBytes + 300);
  EXPECT_FALSE(writer_.HasReady());
  slow.ready = 1000;
  EXPECT_TRUE(writer_.HasReady());
  EXPECT_TRUE(writer_.MayAdd(next));
  EXPECT_EQ(WriteTo(&writer_, SIZE_MAX, &stream_), 1);
  ExpectFrame(0, data, SIZE_MAX);
}

TEST_P(TcpFramerTest, AFrameThatIsBegunCanBeWrittenAgainFromAnyByte) {
  const Bytes data = Payload(1000, 1);
  for (const size_t from : {size_t{0}, size_t{1}, kFrameHeaderBytes, kFrameHeaderBytes + 299}) {
    Send send = Sending(data, 300);
    if (GetParam()) send.ready = send.bytes;
    writer_.Add(&send, from);
    ASSERT_EQ(WriteTo(&writer_, kFrameHeaderBytes + 299, &stream_), 0);
    EXPECT_EQ(writer_.begun_bytes(), kFrameHeaderBytes + 299);
    stream_.resize(stream_.size() - (writer_.begun_bytes() - from));  // What was lost on the way.
    writer_.BeginAgainFrom(from);
    EXPECT_EQ(writer_.begun_bytes(), from);
    EXPECT_EQ(writer_.unwritten_bytes(), kFrameHeaderBytes + 1000 - from);
    send.ready = send.bytes;
    ASSERT_EQ(WriteTo(&writer_, SIZE_MAX, &stream_), 1);
    EXPECT_TRUE(writer_.empty());
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(from, data, SIZE_MAX));
  }
  writer_.BeginAgainFrom(0);  // There is nothing to write again.
  EXPECT_EQ(writer_.unwritten_bytes(), 0u);
}

TEST_P(TcpFramerTest, AShortFrameIsFoundInTheBuffer) {
  for (const uint32_t bytes : {0u, 8u, kMostShort}) {
    const Bytes expected = Payload(bytes, 3);
    const size_t begin = stream_.size();
    stream_.resize(begin + kFrameHeaderBytes + bytes);
    writer_.WriteFrame(Tag{{1, 2, 3, 4}}, expected.data(), bytes, bytes, stream_.data() + begin);
    EXPECT_TRUE(writer_.empty());
    bool found = false;
    while (!found) {
      ASSERT_LT(read_, stream_.size());
      ReadFrom(stream_, &read_, 70, &reader_, true);
      ASSERT_TRUE(reader_.ReadHeader().ok());
      ASSERT_TRUE(!reader_.has_header() || reader_.FindPayload(&found).ok());
    }
    EXPECT_TRUE(reader_.lacks_receive());
    EXPECT_EQ(Bytes(reader_.payload(), reader_.payload() + bytes), expected);
    reader_.Skip();
    EXPECT_FALSE(reader_.within_frame());
  }
}

// In pieces of any size, before, between and behind other frames.
TEST_P(TcpFramerTest, FramesThatAskAreSkipped) {
  const Bytes expected = Payload(100, 3);
  const auto add_ask = [this] {
    stream_.resize(stream_.size() + kFrameHeaderBytes);
    TcpFrameWriter::WriteAsk(stream_.data() + stream_.size() - kFrameHeaderBytes);
  };
  for (size_t most = 1; most <= 3 * kFrameHeaderBytes; ++most) {
    const uint64_t sequence = most;
    add_ask();
    add_ask();
    const Bytes frame = Frame(static_cast<int>(sequence), expected, GetParam());
    stream_.insert(stream_.end(), frame.begin(), frame.end());
    add_ask();
    ASSERT_NO_FATAL_FAILURE(ExpectFrame(sequence, expected, most));
  }
  while (read_ < stream_.size()) {
    ReadFrom(stream_, &read_, SIZE_MAX, &reader_);
    ASSERT_TRUE(reader_.ReadHeader().ok());
  }
  ASSERT_TRUE(reader_.ReadHeader().ok());
  EXPECT_FALSE(reader_.within_frame());
}

TEST_P(TcpFramerTest, ADamagedPayloadIsRefusedIfItsChecksumTells) {
  const Bytes data = Payload(100, 1);
  for (const bool has_receive : {true, false}) {
    TcpFrameReader reader(kMostShort);
    stream_ = Frame(0, data, GetParam());
    stream_.back() ^= std::byte{1};
    read_ = 0;
    ReadFrom(stream_, &read_, SIZE_MAX, &reader, true);
    ASSERT_TRUE(reader.ReadHeader().ok() && reader.has_header());
    bool found = false;
    bool moved = false;
    Bytes memory(data.size());
    Recv recv;
    recv.data = memory.data();
    Recv* finished = nullptr;
    if (has_receive) {
      reader.SetReceive(&recv);
      reader.MovePayload(&moved);
    }
    const Status status = has_receive ? reader.Finish(&finished) : reader.FindPayload(&found);
    EXPECT_EQ(status.code(), GetParam() ? Code::kProtocol : Code::kOk);
    EXPECT_EQ(found || finished != nullptr, !GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, TcpFramerTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "checksummed" : "plain"; });

}  // namespace
}  // namespace annulus
