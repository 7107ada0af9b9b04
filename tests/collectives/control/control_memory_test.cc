// A control thread for which memory runs out: its rank learns that, the other one that it has gone or, where there is
// memory again, why. Every allocation of what it does fails once.
//
// Threads: the test's own plays the other rank.
#include <gtest/gtest.h>
#include <poll.h>

#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/control_wire.h"
#include "collectives/control/message_stream.h"
#include "collectives/control/verdict.h"
#include "tests/collectives/control/control_pairs.h"
#include "tests/transport/allocation_counter.h"

namespace annulus {
namespace {

constexpr std::chrono::seconds kPatience(20);  // Only a failing test waits that long.

// One of two ranks, and the other one's end of its connection.
class ControlMemoryTest : public testing::TestWithParam<int> {
 protected:
  ~ControlMemoryTest() override { CloseOther(); }

  void Start() {
    CloseOther();
    known_ = false;
    std::vector<ControlConnections> connections = ConnectRanks(2);
    other_ = connections[1 - rank_].Take(rank_).fd;
    ControlConfig config;
    config.rank = rank_;
    config.nranks = 2;
    config.connections = std::move(connections[rank_]);
    config.on_verdict = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      known_ = true;
      changed_.notify_all();
    };
    ASSERT_TRUE(Control::Start(std::move(config), &control_).ok());
  }

  // What the rank answers.
  void Ask() const {
    ByteWriter out;
    if (rank_ == 0) {
      WriteStatus(Status(Code::kTimeout, "the collective did not finish before its deadline", 0, 0), &out);
      WriteCall(Call{}, &out);
    } else {
      out.U32(1);
    }
    const EncodedMessage message = EncodeMessage(rank_ == 0 ? MessageType::kReport : MessageType::kQuery, out.bytes());
    ASSERT_EQ(::write(other_, message->data(), message->size()), static_cast<ssize_t>(message->size()));
  }

  // Waits until something has arrived. Returns whether that was the end.
  bool AwaitEnd() {
    pollfd waits{other_, POLLIN, 0};
    EXPECT_EQ(::poll(&waits, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())), 1);
    char buffer[4096];
    const ssize_t bytes = ::recv(other_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (bytes > 0) heard_.append(buffer, static_cast<size_t>(bytes));
    return bytes <= 0;
  }

  // Whether the last message that has arrived is a verdict for want of memory.
  bool HeardOfMemory() const {
    std::string_view left = heard_;
    Verdict verdict;
    while (left.size() >= kMessageHeaderBytes) {
      ByteReader length(std::as_bytes(std::span(left)));
      const std::string_view body = left.substr(kMessageHeaderBytes, length.U32() - 1);
      ByteReader in(std::as_bytes(std::span(body)));
      const auto type = static_cast<MessageType>(left[kMessageHeaderBytes - 1]);
      verdict = {};
      if (type == MessageType::kVerdict && !ReadVerdict(&in, &verdict)) return false;
      left.remove_prefix(kMessageHeaderBytes + body.size());
    }
    return verdict.code == Code::kOutOfMemory && verdict.rank == rank_ && left.empty();
  }

  bool AwaitVerdict() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return known_; });
  }

  const int rank_ = GetParam();
  std::unique_ptr<Control> control_;

 private:
  void CloseOther() {
    control_.reset();
    if (other_ >= 0) ::close(other_);
    other_ = -1;
    heard_.clear();
  }

  int other_ = -1;
  std::string heard_;  // All that has arrived at the other end.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool known_ = false;
};

TEST_P(ControlMemoryTest, TheRankEndsAndTheOtherOneNotices) {
  size_t failed = 0;
  for (;; ++failed) {
    SCOPED_TRACE("allocation " + std::to_string(failed + 1));
    ASSERT_NO_FATAL_FAILURE(Start());
    ExhaustOthers(failed + 1);
    Ask();
    bool ended = AwaitEnd();
    if (!StopExhausting()) break;
    while (!ended && !HasFailure()) ended = AwaitEnd();
    ASSERT_TRUE(ended);
    ASSERT_TRUE(AwaitVerdict());
    EXPECT_EQ(control_->verdict().code, Code::kOutOfMemory);
    EXPECT_EQ(control_->verdict().rank, rank_);
    EXPECT_EQ(control_->Report(Status(Code::kSystem, "later"), Call{}), control_->verdict());
  }
  EXPECT_GT(failed, 2u);
}

TEST_P(ControlMemoryTest, TheOtherOneGetsTheVerdictWhereThereIsMemoryAgain) {
  size_t failed = 0;
  for (;; ++failed) {
    SCOPED_TRACE("allocation " + std::to_string(failed + 1));
    ASSERT_NO_FATAL_FAILURE(Start());
    ExhaustOthers(failed + 1, 1);
    Ask();
    bool ended = AwaitEnd();
    if (!StopExhausting()) break;
    while (!ended && !HasFailure()) ended = AwaitEnd();
    ASSERT_TRUE(AwaitVerdict());
    EXPECT_EQ(control_->verdict().code, Code::kOutOfMemory);
    EXPECT_NE(control_->verdict().message.find("no memory was left"), std::string::npos);
    EXPECT_TRUE(HeardOfMemory());
  }
  EXPECT_GT(failed, 2u);
}

TEST_P(ControlMemoryTest, ARankLeavesWithoutMemory) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ExhaustOthers(1);
  std::thread([this] { control_.reset(); }).join();
  EXPECT_TRUE(StopExhausting());
  EXPECT_TRUE(AwaitEnd());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlMemoryTest, testing::Values(0, 1));

}  // namespace
}  // namespace annulus
