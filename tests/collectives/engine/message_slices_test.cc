// The size of a message's slices, which its sender chooses: what a peer sends decides how a receive goes on, and is
// checked first. The peer is an endpoint that the test moves by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/message/message.h"
#include "collectives/algorithms/slice_tag.h"
#include "tests/collectives/engine/two_message_rank.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 1000;

class MessageSlicesTest : public testing::Test {
 protected:
  void SetUp() override {
    const KernelCopies copies[] = {KernelCopies::kOff, KernelCopies::kOff};
    ASSERT_TRUE(pair_.Make({.slot_bytes = kLargestSliceBytes, .slots = 8}, SlotStores::kPlain, copies));
    rank_.Start(1, pair_.Take(1));
    rank_.Post(rank_.MessageOf(false, &in_, &in_));
    for (size_t i = 0; i < kBytes; ++i) out_[i] = static_cast<std::byte>(i % 251);
  }
  void TearDown() override { rank_.links.Close(); }

  // Sends one slice of the message; `slice` is its index, or the slice size that a word tells.
  void Send(MessageForm form, uint64_t slice, size_t begin, size_t bytes) {
    Call call;
    call.sequence = 1;
    call.kind = CollectiveKind::kSend;
    call.type = DataType::kInt8;
    call.op = static_cast<ReduceOp>(form);
    call.count = kBytes;
    const uint32_t channel = static_cast<uint32_t>(MessageChannel(PlanSettings()));
    ShortPath* const path = pair_.end(0).shortcuts().short_path;
    ASSERT_TRUE(
        path->SendCopy(PackTag(call, {0, slice, channel}), out_.data() + begin, static_cast<uint32_t>(bytes)).ok());
    path->Flush();
  }
  // Drives the rank until the receive has ended, or an error.
  Status Drive() {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    Status status;
    while (status.ok() && rank_.ended.empty() && Now() < deadline) status = rank_.Progress();
    return status;
  }

  ShmPair pair_;
  TwoMessageRank rank_;
  std::vector<std::byte> out_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> in_ = std::vector<std::byte>(kBytes);
};

TEST_F(MessageSlicesTest, AnySizeThatSplitsNoElementIsTaken) {
  constexpr size_t kSlice = 128;
  for (size_t begin = 0; begin < kBytes; begin += kSlice) {
    Send(MessageForm::kData, begin / kSlice, begin, std::min(kSlice, kBytes - begin));
    ASSERT_TRUE(rank_.Progress().ok());
  }
  ASSERT_TRUE(Drive().ok());
  EXPECT_EQ(rank_.ended, std::vector<void*>{&in_});
  EXPECT_EQ(in_, out_);
}

TEST_F(MessageSlicesTest, OneSliceIsTheWholeMessage) {
  Send(MessageForm::kData, 0, 0, kBytes);
  ASSERT_TRUE(Drive().ok());
  EXPECT_EQ(in_, out_);
}

TEST_F(MessageSlicesTest, ASizeThatSplitsElementsIsRefused) {
  Send(MessageForm::kData, 0, 0, 100);
  const Status status = Drive();
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_NE(status.message().find("slices of 100 bytes"), std::string::npos) << status.message();
}

TEST_F(MessageSlicesTest, SoIsAnEmptyFirstSlice) {
  Send(MessageForm::kData, 0, 0, 0);
  EXPECT_EQ(Drive().code(), Code::kProtocol);
}

TEST_F(MessageSlicesTest, ALaterSliceOfAnotherSizeIsRefused) {
  Send(MessageForm::kData, 0, 0, 128);
  Send(MessageForm::kData, 1, 128, 64);
  EXPECT_EQ(Drive().code(), Code::kProtocol);
}

TEST_F(MessageSlicesTest, ANoticeTellsTheSize) {
  Send(MessageForm::kNotice, 512, 0, 0);
  Send(MessageForm::kData, 0, 0, 512);
  Send(MessageForm::kData, 1, 512, kBytes - 512);
  ASSERT_TRUE(Drive().ok());
  EXPECT_EQ(in_, out_);
}

TEST_F(MessageSlicesTest, ANoticeOfLargerSlicesThanSlotsIsRefused) {
  Send(MessageForm::kNotice, 2 * kLargestSliceBytes, 0, 0);
  EXPECT_EQ(Drive().code(), Code::kProtocol);
}

TEST_F(MessageSlicesTest, ANoticeOfNoSizeIsRefused) {
  Send(MessageForm::kNotice, 0, 0, 0);
  EXPECT_EQ(Drive().code(), Code::kProtocol);
}

}  // namespace
}  // namespace annulus
