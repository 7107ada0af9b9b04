// TcpRetained: whatever is confirmed, copied and written again, the bytes behind a position stay what they were.
#include "transport/tcp/session/tcp_retained.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "tests/transport/tcp/tcp_peer.h"

namespace annulus {
namespace {

constexpr uint32_t kShort = 16 * 1024;
constexpr TcpRetained::Room kRoom = {.at_once = 256 * 1024, .late = 256 * 1024};

Bytes HeaderOf(int number) { return Payload(kFrameHeaderBytes, number + 1000); }

Bytes Listed(const TcpRetained& retained) {
  IoList list;
  retained.List(&list);
  Bytes bytes;
  for (int i = 0; i < list.count(); ++i) {
    const std::byte* const begin = static_cast<const std::byte*>(list.pieces()[i].iov_base);
    bytes.insert(bytes.end(), begin, begin + list.pieces()[i].iov_len);
  }
  return bytes;
}

// A stream of frames beside what is kept of it.
class TcpRetainedTest : public ::testing::Test {
 protected:
  // Adds a frame of a send, as if it was written. Returns whether its send is done.
  bool AddWritten(uint32_t bytes) {
    Slice& slice = slices_.emplace_back();
    slice.payload = Payload(bytes, static_cast<int>(slices_.size()));
    slice.send = Sending(slice.payload, bytes);
    const Bytes header = HeaderOf(static_cast<int>(slices_.size()));
    stream_.insert(stream_.end(), header.begin(), header.end());
    stream_.insert(stream_.end(), slice.payload.begin(), slice.payload.end());
    const bool done = retained_.AddWritten(header.data(), &slice.send);
    if (done) Finish(&slice.send);
    return done;
  }
  void AddShort(uint32_t bytes) {
    const Bytes frame = Payload(kFrameHeaderBytes + bytes, static_cast<int>(stream_.size()));
    std::copy(frame.begin(), frame.end(), retained_.AddShort(frame.size()));
    stream_.insert(stream_.end(), frame.begin(), frame.end());
  }
  void Confirm(uint64_t position) {
    retained_.Confirm(position, [this](Send* send) { Finish(send); });
  }
  void CopyLent() {
    while (retained_.CanCopyLent()) Finish(retained_.CopyLent());
  }
  // The poster does as it likes with the memory of a send that is done.
  void Finish(Send* send) {
    std::fill_n(const_cast<std::byte*>(send->data), send->bytes, std::byte{0xee});
    ++finished_;
  }
  // Whether exactly the stream from `position` on is written again, in writes of up to `most` bytes.
  void ExpectWrittenAgain(uint64_t position, size_t most) {
    retained_.WriteAgainFrom(position);
    Bytes written;
    while (retained_.has_unwritten()) {
      Bytes next = Listed(retained_);
      ASSERT_FALSE(next.empty());
      next.resize(std::min(next.size(), most));
      retained_.Wrote(next.size());
      written.insert(written.end(), next.begin(), next.end());
    }
    ASSERT_EQ(retained_.end(), stream_.size());
    EXPECT_TRUE(std::equal(written.begin(), written.end(), stream_.begin() + static_cast<std::ptrdiff_t>(position),
                           stream_.end()));
  }

  struct Slice {
    Bytes payload;
    Send send;
  };

  TcpRetained retained_{kRoom};
  std::deque<Slice> slices_;
  Bytes stream_;
  int finished_ = 0;
};

TEST_F(TcpRetainedTest, SmallSendsAreCopiedAndLargeOnesLent) {
  EXPECT_TRUE(AddWritten(0));
  EXPECT_TRUE(AddWritten(TcpRetained::kMostCopied));
  EXPECT_FALSE(retained_.has_lent());
  EXPECT_FALSE(AddWritten(TcpRetained::kMostCopied + 1));
  EXPECT_TRUE(retained_.has_lent());
  EXPECT_EQ(retained_.end(), stream_.size());
  EXPECT_FALSE(retained_.has_unwritten());
}

TEST_F(TcpRetainedTest, EveryByteCanBeTheFirstToWriteAgain) {
  AddWritten(100);
  AddWritten(5000);
  AddWritten(0);
  AddWritten(20);
  for (uint64_t position = 0; position <= stream_.size(); ++position) {
    ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(position, 1000)) << position;
  }
}

TEST_F(TcpRetainedTest, EveryByteCanBeTheLastConfirmed) {
  for (uint64_t confirmed = 0;; ++confirmed) {
    retained_.~TcpRetained();
    new (&retained_) TcpRetained(kRoom);
    slices_.clear();
    stream_.clear();
    finished_ = 0;
    AddWritten(100);
    AddWritten(4500);
    AddWritten(10);
    if (confirmed > stream_.size()) break;
    Confirm(confirmed);
    EXPECT_EQ(retained_.begin(), confirmed);
    EXPECT_EQ(retained_.has_lent(), confirmed < stream_.size() - kFrameHeaderBytes - 10);
    EXPECT_EQ(finished_, retained_.has_lent() ? 2 : 3);
    ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(confirmed, 700)) << confirmed;
    CopyLent();
    EXPECT_EQ(finished_, 3);
    ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(confirmed, SIZE_MAX)) << confirmed;
  }
}

TEST_F(TcpRetainedTest, WhatIsLentIsCopiedLateAsFarAsThereIsRoom) {
  const uint32_t bytes = kRoom.late / 2 + 1;
  AddWritten(bytes);
  AddWritten(bytes);
  CopyLent();
  EXPECT_EQ(finished_, 1) << "the first one";
  EXPECT_TRUE(retained_.has_lent());
  ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(0, SIZE_MAX));
  Confirm(kFrameHeaderBytes + bytes - 1);
  EXPECT_FALSE(retained_.CanCopyLent());
  Confirm(kFrameHeaderBytes + bytes);
  EXPECT_TRUE(retained_.CanCopyLent()) << "the room is free again";
  Confirm(2 * kFrameHeaderBytes + bytes + 2);  // Only the rest of a slice has to be copied.
  CopyLent();
  EXPECT_EQ(finished_, 2);
  ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(2 * kFrameHeaderBytes + bytes + 2, SIZE_MAX));
}

TEST_F(TcpRetainedTest, ThereIsRoomForTheFramesThatItSays) {
  for (const uint32_t bytes : {0u, 1u, TcpRetained::kMostCopied, TcpRetained::kMostCopied + 1}) {
    for (size_t frames = 40; frames > 0; --frames) {
      while (retained_.HasRoom(frames)) {
        for (size_t i = 0; i < frames; ++i) AddWritten(bytes);
      }
    }
    EXPECT_TRUE(retained_.wants_confirmation());
    ExpectWrittenAgain(retained_.begin(), SIZE_MAX);
    CopyLent();
    ExpectWrittenAgain(retained_.begin(), SIZE_MAX);
    EXPECT_TRUE(retained_.wants_confirmation()) << "or nothing would ever make room";
    Confirm(stream_.size());
    EXPECT_TRUE(retained_.HasRoom(40));
  }
}

// With the fewest and smallest slots, and the most sockets.
TEST(TcpRetainedRoom, IsASmallPartOfTheSlotsAndLetsEveryFrameIn) {
  for (const size_t slot_bytes : {64u, 16u * 1024, 256u * 1024}) {
    for (const int slots : {4, 8}) {
      size_t late = 0;
      for (const int lanes : {1, 2, 64}) {
        const uint32_t most_short = lanes == 1 ? kShort : 0;
        const TcpRetained::Room room = TcpRetained::RoomFor(slot_bytes, slots, lanes, most_short);
        TcpRetained retained(room);
        EXPECT_EQ(TcpRetained::MemoryBytes(room), retained.bytes());
        EXPECT_TRUE(retained.HasRoom(3));
        EXPECT_TRUE(retained.HasRoomForShort(kFrameHeaderBytes + most_short));
        late = lanes * room.late;
        EXPECT_LE(late, std::max<size_t>(slots, lanes) * slot_bytes);
        EXPECT_LE(retained.bytes() - room.late, slot_bytes == 256 * 1024 ? 300'000u : 50'000u);
      }
    }
  }
}

TEST_F(TcpRetainedTest, AnyOrderOfThingsKeepsTheBytes) {
  std::mt19937 random(11);
  for (int step = 0; step < 20'000; ++step) {
    if (stream_.size() > 4'000'000 && retained_.begin() == retained_.end()) {
      retained_.~TcpRetained();
      new (&retained_) TcpRetained(kRoom);
      slices_.clear();
      stream_.clear();
    }
    const uint64_t kept = retained_.end() - retained_.begin();
    switch (random() % 6) {
      case 0:
      case 1:
        if (retained_.HasRoom(1)) AddWritten(random() % 3 == 0 ? random() % 30'000 : random() % 100);
        break;
      case 2:
        if (retained_.HasRoomForShort(kFrameHeaderBytes + kShort)) {
          AddShort(random() % 8 == 0 ? kShort : random() % 100);
          ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(retained_.next(), SIZE_MAX));
        }
        break;
      case 3:
        Confirm(retained_.begin() + random() % (kept + 1));
        break;
      case 4:
        if (retained_.CanCopyLent()) Finish(retained_.CopyLent());
        break;
      default:
        ASSERT_NO_FATAL_FAILURE(ExpectWrittenAgain(retained_.begin() + random() % (kept + 1), 1 + random() % 60'000));
    }
    ASSERT_EQ(retained_.end(), stream_.size());
  }
}

TEST(TcpRetainedOff, KeepsOnlyWhatIsNotWritten) {
  TcpRetained retained(kShort);
  const Bytes frame = Payload(kFrameHeaderBytes + kShort, 1);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(retained.HasRoomForShort(frame.size()));
    std::copy(frame.begin(), frame.end(), retained.AddShort(frame.size()));
    EXPECT_FALSE(retained.HasRoomForShort(1));
    retained.Wrote(5);
    EXPECT_EQ(Listed(retained), Bytes(frame.begin() + 5, frame.end()));
    retained.Wrote(frame.size() - 5);
    EXPECT_FALSE(retained.has_unwritten());
  }
}

}  // namespace
}  // namespace annulus
