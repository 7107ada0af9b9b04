// Messages of several slices that are sent from within the call that starts them: the link copies, so they need not be
// driven. And short ones that a link has begun.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/engine/messages.h"
#include "tests/collectives/engine/message_pair.h"
#include "tests/collectives/engine/two_message_rank.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/transport.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 64 * 1024;
constexpr size_t kBytes = 3 * kSlotBytes - 8;  // Three slices.

class BegunMessagesTest : public MessagePairTest {
 protected:
  void Connect(int slots) {
    const KernelCopies copies[] = {KernelCopies::kOff, KernelCopies::kOff};
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = slots}, SlotStores::kPlain, copies));
    for (size_t i = 0; i < kBytes; ++i) out_[i] = static_cast<std::byte>(i % 251);
    StartBoth();
  }
  AtOnce Begin() { return messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &out_, &out_), 0); }
  // Drives only the rank that receives.
  void Receive(size_t number) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (ranks_[1].ended.size() < number && Now() < deadline) {
      ranks_[1].Drive();
      if (ended_ == nullptr) ended_ = messages(0).EndBegun();
    }
    ASSERT_EQ(ranks_[1].ended.size(), number);
  }

  void* ended_ = nullptr;  // The cookie of the message that EndBegun has ended.
  std::vector<std::byte> word_ = std::vector<std::byte>(8, std::byte{3});
  std::vector<std::byte> got_ = std::vector<std::byte>(8);
  std::vector<std::byte> out_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> in_ = std::vector<std::byte>(kBytes);
};

TEST_F(BegunMessagesTest, WhatFitsIntoTheLinkHasEndedAtOnce) {
  Connect(8);
  for (size_t round = 1; round <= 20; ++round) {
    ASSERT_EQ(Begin(), AtOnce::kDone);
    EXPECT_FALSE(messages(0).has_active());
    ranks_[1].Post(ranks_[1].MessageOf(false, &in_, &in_));
    Receive(round);
    EXPECT_EQ(in_, out_);
    in_.assign(kBytes, std::byte{0});
  }
  EXPECT_TRUE(ranks_[0].ended.empty()) << "whoever began it is not told of its end";
}

TEST_F(BegunMessagesTest, TheRestGoesWhenItsEndIsLookedFor) {
  Connect(2);
  for (size_t round = 1; round <= 20; ++round) {
    ASSERT_EQ(Begin(), AtOnce::kBegun);
    EXPECT_TRUE(messages(0).HasOnlyBegun());
    EXPECT_EQ(messages(0).EndBegun(), nullptr) << "nobody has read any of it yet";
    ended_ = nullptr;
    ranks_[1].Post(ranks_[1].MessageOf(false, &in_, &in_));
    Receive(round);
    EXPECT_EQ(in_, out_);
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (ended_ == nullptr && Now() < deadline) ended_ = messages(0).EndBegun();
    EXPECT_EQ(ended_, &out_);
    EXPECT_FALSE(messages(0).busy());
    in_.assign(kBytes, std::byte{0});
  }
}

TEST_F(BegunMessagesTest, OneWithOthersBehindItIsDriven) {
  Connect(2);
  ASSERT_EQ(Begin(), AtOnce::kBegun);
  EXPECT_EQ(messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &word_, &word_), 0), AtOnce::kNo) << "it would overtake";
  ranks_[0].Post(ranks_[0].MessageOf(true, &word_, &word_));
  ranks_[1].Post(ranks_[1].MessageOf(false, &in_, &in_));
  ranks_[1].Post(ranks_[1].MessageOf(false, &got_, &got_));
  ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 2 && ranks_[1].ended.size() == 2; }));
  EXPECT_EQ(ranks_[0].ended, (std::vector<void*>{&out_, &word_}));
  EXPECT_EQ(in_, out_);
  EXPECT_EQ(got_, word_);
}

TEST_F(BegunMessagesTest, ALargeOneIsLeftToTheDriver) {
  Connect(8);
  std::vector<std::byte> large(256 * 1024 + 8);
  EXPECT_EQ(messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &large, &large), 0), AtOnce::kNo);
  large.resize(256 * 1024);
  EXPECT_EQ(messages(0).MoveAtOnce(ranks_[0].MessageOf(true, &large, &large), 0), AtOnce::kDone);
}

// Also where the link lives on for what the peer has sent.
TEST_F(BegunMessagesTest, OneWhoseLinkEndsIsLeftToTheDriver) {
  Connect(2);
  ASSERT_EQ(messages(1).MoveAtOnce(ranks_[1].MessageOf(true, &word_, &word_), 0), AtOnce::kDone);
  ASSERT_EQ(Begin(), AtOnce::kBegun);
  ranks_[1].links.Close();
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    ASSERT_EQ(messages(0).EndBegun(), nullptr) << "it has not been sent";
    status = ranks_[0].Progress();
  }
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 1);
  EXPECT_EQ(messages(0).failed().sequence, 2u);
  EXPECT_TRUE(ranks_[0].ended.empty());
}

// A link like a socket that takes in all but the rest of a short slice, and then ends.
class FadingLink final : public Endpoint, public ShortPath {
 public:
  FadingLink() {
    limits_.slot_bytes = kSlotBytes;
    limits_.send_slots = limits_.recv_slots = 2;
    limits_.short_bytes = 1024;
  }

  void End() { status_ = {Code::kPeerLost, "rank 1 has left", 1, 0}; }

  const Limits& limits() const override { return limits_; }
  int peer() const override { return 1; }
  std::string Describe() const override { return "a link that ends"; }
  EndpointStats stats() const override { return {}; }
  Shortcuts shortcuts() override { return {.short_path = this}; }
  Status AcquireSlot(size_t bytes, std::byte** slot) override {
    *slot = slot_.data();
    return status_;
  }
  Status PostSend(Send* send) override {
    send->code = Code::kOk;
    return status_;
  }
  Status PostRecv(Recv* recv) override {
    recv->code = Code::kInProgress;
    return status_;
  }
  void Release(Recv*) override {}
  Status Progress(bool*) override { return status_; }
  bool Arm() override { return status_.ok(); }
  bool Close() override { return true; }
  Status SendCopy(const Tag&, const std::byte*, uint32_t) override { return status_; }
  bool Peek(Slice*) override { return false; }
  void Pop() override {}
  bool Flush() override { return !status_.ok(); }  // Then there is nothing left that could be written.

 private:
  Limits limits_;
  Status status_;
  std::vector<std::byte> slot_ = std::vector<std::byte>(kSlotBytes);
};

TEST(ShortMessagesTest, WhatDidNotLeaveBeforeTheLinkEndedIsLost) {
  auto made = std::make_unique<FadingLink>();
  FadingLink* const link = made.get();
  TwoMessageRank rank;
  rank.Start(0, std::move(made));
  std::vector<std::byte> word(8);
  rank.Post(rank.MessageOf(true, &word, &word));  // Makes the peer, and room for the next.
  for (int drive = 0; drive < 3; ++drive) rank.Drive();
  ASSERT_EQ(rank.ended.size(), 1u);
  ASSERT_EQ(rank.messages->MoveAtOnce(rank.MessageOf(true, &word, &word), 0), AtOnce::kBegun);
  EXPECT_EQ(rank.messages->EndBegun(), nullptr);
  link->End();
  EXPECT_EQ(rank.Progress().code(), Code::kPeerLost);
  EXPECT_EQ(rank.ended.size(), 1u) << "it is said to have been sent";
  EXPECT_EQ(rank.messages->EndBegun(), nullptr);
}

}  // namespace
}  // namespace annulus
