// Messages that are lent over shared memory (decision 88): how they end without being driven.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "collectives/engine/messages.h"
#include "tests/collectives/engine/message_pair.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 64 * 1024;
constexpr uint32_t kSlots = 8;

class MessageLoansTest : public MessagePairTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kLargestSliceBytes, .slots = kSlots},
                           SlotStores::kPlain));  // Near peers would not lend.
    ASSERT_TRUE(MayLand(&pair_.end(0), MemoryKind::kHost, in_.data(), kBytes)) << "a process may read its own memory";
    StartBoth();
  }

  AtOnce Lend() { return messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &out_, &out_), 0); }
  AtOnce Receive() { return messages(1).MoveAtOnce(ranks_[1].MessageOf(false, &in_, nullptr), 1); }

  std::vector<std::byte> out_ = std::vector<std::byte>(kBytes, std::byte{7});
  std::vector<std::byte> in_ = std::vector<std::byte>(kBytes);
};

TEST_F(MessageLoansTest, ALoanThatWasReadEndsWithoutBeingDriven) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(Lend(), AtOnce::kBegun);
    EXPECT_TRUE(messages(0).HasOnlyBegun());
    EXPECT_EQ(messages(0).EndBegun(), nullptr) << "nobody has read it yet";
    ASSERT_EQ(Receive(), AtOnce::kDone);
    EXPECT_EQ(in_, out_);
    EXPECT_EQ(messages(0).EndBegun(), &out_);
    EXPECT_FALSE(messages(0).busy());
    EXPECT_EQ(messages(0).EndBegun(), nullptr);
    std::ranges::fill(in_, std::byte{0});
  }
  EXPECT_TRUE(ranks_[0].ended.empty()) << "whoever asks for the end is not told of it";
}

TEST_F(MessageLoansTest, SoDoesOneThatNobodyReads) {
  ASSERT_EQ(Lend(), AtOnce::kBegun);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  const void* ended = nullptr;
  while (ended == nullptr && Now() < deadline) ended = messages(0).EndBegun();
  EXPECT_EQ(ended, &out_);
  std::ranges::fill(out_, std::byte{0});  // It is the user's again.
  ASSERT_EQ(Receive(), AtOnce::kDone);
  EXPECT_EQ(in_, std::vector<std::byte>(kBytes, std::byte{7}));
}

TEST_F(MessageLoansTest, OneWithOthersBehindItIsDriven) {
  ASSERT_EQ(Lend(), AtOnce::kBegun);
  std::vector<std::byte> word(8);
  ranks_[0].Post(ranks_[0].MessageOf(true, &word, &word));
  EXPECT_TRUE(messages(0).HasOnlyBegun());
  ranks_[0].Drive();
  EXPECT_FALSE(messages(0).HasOnlyBegun()) << "it has been taken on";
  ASSERT_EQ(Receive(), AtOnce::kDone);
  EXPECT_EQ(messages(0).EndBegun(), nullptr);
  ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 2; }));
  EXPECT_EQ(ranks_[0].ended, (std::vector<void*>{&out_, &word}));
  std::vector<std::byte> got(8);
  ASSERT_EQ(messages(1).MoveAtOnce(ranks_[1].MessageOf(false, &got, nullptr), 1), AtOnce::kDone);
}

TEST_F(MessageLoansTest, BetweenRanksThatUseTagsALargeOneIsOffered) {
  std::vector<std::byte> word(8);
  Message sent = ranks_[0].MessageOf(true, &word, &word);
  Message received = ranks_[1].MessageOf(false, &word, &word);
  sent.tag = received.tag = 1;
  ranks_[0].Post(sent);
  ranks_[1].Post(received);
  ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 1 && ranks_[1].ended.size() == 1; }));
  EXPECT_EQ(Lend(), AtOnce::kNo) << "unasked, it could take the room that others need";
}

TEST_F(MessageLoansTest, ALookThatFindsAnotherMessageIsTheLast) {
  std::vector<std::byte> word(8);
  EXPECT_EQ(Receive(), AtOnce::kNo);
  ASSERT_EQ(messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &word, nullptr), 0), AtOnce::kDone);
  EXPECT_EQ(Receive(), AtOnce::kNever);
  ASSERT_EQ(messages(1).MoveAtOnce(ranks_[1].MessageOf(false, &word, nullptr), 1), AtOnce::kDone);
}

TEST_F(MessageLoansTest, OneWithAReceiveBesideItIsDriven) {
  ASSERT_EQ(Lend(), AtOnce::kBegun);
  std::vector<std::byte> word(8);
  ranks_[0].Post(ranks_[0].MessageOf(false, &word, &word));
  ranks_[0].Drive();
  ASSERT_EQ(Receive(), AtOnce::kDone);
  EXPECT_EQ(messages(0).EndBegun(), nullptr);
  ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 1; }));
  EXPECT_EQ(ranks_[0].ended.front(), &out_);
  ASSERT_EQ(messages(1).MoveAtOnce(ranks_[1].MessageOf(true, &word, nullptr), 1), AtOnce::kDone);
  ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 2; }));
}

TEST_F(MessageLoansTest, ALoanWhoseLinkEndsIsLeftToTheDriver) {
  ASSERT_EQ(Lend(), AtOnce::kBegun);
  ranks_[0].links.Close();
  EXPECT_EQ(messages(0).EndBegun(), nullptr);
  bool moved = false;
  EXPECT_EQ(messages(0).Progress(&moved).code(), Code::kAborted);
}

// The link lives on for what the peer has sent, but the message was not taken.
TEST_F(MessageLoansTest, ALoanThatThePeerDiedReadingIsAnErrorThoughAMessageOfItsWaits) {
  std::vector<std::byte> word(8);
  ASSERT_EQ(messages(1).MoveAtOnce(ranks_[1].MessageOf(true, &word, &word), 0), AtOnce::kDone);
  ASSERT_EQ(Lend(), AtOnce::kBegun);
  bool reads = false;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    reads |= pair_.mapping().direction(0).claims[slot].Move(ShmClaimState::kOffered, ShmClaimState::kReading);
  }
  ASSERT_TRUE(reads);
  ranks_[1].links.Close();
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    ASSERT_EQ(messages(0).EndBegun(), nullptr) << "it has not arrived";
    status = ranks_[0].Progress();
  }
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 1);
  EXPECT_TRUE(ranks_[0].ended.empty());
}

}  // namespace
}  // namespace annulus
