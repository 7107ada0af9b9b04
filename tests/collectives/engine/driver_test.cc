// Messages beside drives that are over at once: they move, and their deadlines are kept, though no drive waits.

#include "collectives/engine/driver.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/table.h"
#include "tests/collectives/engine/two_message_rank.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

// The driver of rank 0, whose collectives are those of a rank alone, so each ends in its first step.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kLargestSliceBytes, .slots = 8}));
    for (const int side : {0, 1}) ranks_[side].Start(side, pair_.Take(side));
    engine_ = std::make_unique<Engine>(0, PlanSettings(), Topology(), &no_links_, &ranks_[0].monitor);
    ASSERT_TRUE(DomainQueues::Open(nullptr, ReduceOn::kAuto, &queues_).ok());
    driver_ = std::make_unique<Driver>(engine_.get(), ranks_[0].messages.get(), queues_.get(), pair_.reactor(0),
                                       nullptr, &ranks_[0].monitor);
  }
  void TearDown() override {
    for (TwoMessageRank& each : ranks_) each.links.Close();
  }

  Driver::Outcome CallOnce() { return StartCall(kHour, {}); }
  Driver::Outcome StartCall(Nanoseconds timeout, const Patience& patience) {
    Call call;
    call.sequence = ++sequence_;
    call.kind = CollectiveKind::kAllreduce;
    call.type = DataType::kInt32;
    call.count = 1;
    Buffers buffers;
    buffers.input = ConstBuffer(reinterpret_cast<std::byte*>(&in_));
    buffers.output = Buffer(reinterpret_cast<std::byte*>(&out_));
    return driver_->Run(call, buffers, timeout, WaitPolicy(), patience, &verdict_);
  }
  // What a wait for something that has ended already does.
  bool DriveOnce() {
    const std::function<bool()> is_over = [] { return true; };
    return driver_->RunMessages(WaitPolicy(), {&is_over}, &verdict_);
  }
  // A receive of which the peer sends nothing.
  void PostLate(Nanoseconds timeout) {
    Message message = ranks_[0].MessageOf(false, &data_[0], &data_[0]);
    message.timeout = timeout;
    ranks_[0].Post(message);
  }

  static constexpr Nanoseconds kHour = 3600 * kSecond;
  static constexpr Nanoseconds kPatience = 20 * kSecond;
  static constexpr size_t kBytes = size_t{4} * 1024 * 1024;

  ShmPair pair_;
  TwoMessageRank ranks_[2];
  Links no_links_{1, PlanSettings().channels + 1};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DomainQueues> queues_;
  std::unique_ptr<Driver> driver_;
  std::vector<std::byte> data_[2] = {std::vector<std::byte>(kBytes, std::byte{7}), std::vector<std::byte>(kBytes)};
  Verdict verdict_;
  uint64_t sequence_ = 0;
  int in_ = 5;
  int out_ = 0;
};

TEST_F(DriverTest, AMessageMovesBesideCallsThatEndAtOnce) {
  ranks_[0].Post(ranks_[0].MessageOf(true, &data_[0], &data_[0]));
  ranks_[1].Post(ranks_[1].MessageOf(false, &data_[1], &data_[1]));
  const Deadline deadline = DeadlineAfter(kPatience);
  while (ranks_[0].ended.empty() && Now() < deadline) {
    ASSERT_EQ(CallOnce(), Driver::Outcome::kDone);
    ranks_[1].Drive();
  }
  ASSERT_FALSE(ranks_[0].ended.empty()) << "nobody has driven it";
  while (ranks_[1].ended.empty() && Now() < deadline) ranks_[1].Drive();
  EXPECT_EQ(data_[1], data_[0]);
  EXPECT_EQ(out_, in_);
}

TEST_F(DriverTest, ACallThatEndsAtOnceTellsThatAMessageIsLate) {
  PostLate(kMillisecond);
  const Deadline deadline = DeadlineAfter(kPatience);
  Driver::Outcome outcome = Driver::Outcome::kDone;
  while (outcome == Driver::Outcome::kDone && Now() < deadline) outcome = CallOnce();
  EXPECT_EQ(outcome, Driver::Outcome::kFailed);
  EXPECT_EQ(verdict_.code, Code::kTimeout);
}

TEST_F(DriverTest, SoDoesADriveOfMessagesThatIsOverAtOnce) {
  PostLate(kMillisecond);
  const Deadline deadline = DeadlineAfter(kPatience);
  bool goes_on = true;
  while (goes_on && Now() < deadline) goes_on = DriveOnce();
  EXPECT_FALSE(goes_on);
  EXPECT_EQ(verdict_.code, Code::kTimeout);
}

TEST_F(DriverTest, OneWithTimeLeftIsNotLate) {
  PostLate(kHour);
  const Deadline deadline = DeadlineAfter(20 * Driver::kMostUnseen);
  while (Now() < deadline) {
    ASSERT_EQ(CallOnce(), Driver::Outcome::kDone);
    ASSERT_TRUE(DriveOnce());
  }
}

// Whoever only asks whether a call is done leaves after each poll.
TEST_F(DriverTest, ACallThatIsOnlyPolledEndsAtItsDeadline) {
  const PlanSettings plan;
  const Topology topology(2);
  Links links(2, plan.channels + 1);
  std::vector<std::unique_ptr<ShmPair>> pairs;
  for (const NeededLink& each : LinksNeeded(0, {plan, topology})) {
    pairs.push_back(std::make_unique<ShmPair>());
    ASSERT_TRUE(pairs.back()->Make({.slot_bytes = SlotBytes(plan), .slots = plan.slots}));
    links.Add(each.peer, each.channel, pairs.back()->Take(0));
  }
  engine_ = std::make_unique<Engine>(0, plan, topology, &links, &ranks_[0].monitor);
  driver_ = std::make_unique<Driver>(engine_.get(), ranks_[0].messages.get(), queues_.get(), pair_.reactor(0), nullptr,
                                     &ranks_[0].monitor);
  bool has_polled = false;
  const std::function<bool()> is_over = [&] { return std::exchange(has_polled, true); };
  Driver::Outcome outcome = StartCall(10 * kMillisecond, {&is_over});
  const Deadline deadline = DeadlineAfter(kPatience);
  while (outcome == Driver::Outcome::kPaused && Now() < deadline) {
    has_polled = false;
    outcome = driver_->GoOn(WaitPolicy(), {&is_over}, &verdict_);
  }
  EXPECT_EQ(outcome, Driver::Outcome::kFailed);
  EXPECT_EQ(verdict_.code, Code::kTimeout);
  links.Close();
}

TEST_F(DriverTest, MemoryThatRunsOutIsAFailure) {
  PostLate(kHour);
  const std::function<bool()> is_over = []() -> bool { throw std::bad_alloc(); };
  EXPECT_FALSE(driver_->RunMessages(WaitPolicy(), {&is_over}, &verdict_));
  EXPECT_EQ(verdict_.code, Code::kOutOfMemory);
  EXPECT_NE(verdict_.message, "");
}

}  // namespace
}  // namespace annulus
