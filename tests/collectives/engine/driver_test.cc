// Messages beside drives that are over at once: they move, and their deadlines are kept, though no drive waits. And
// links beside drives that wait for something else: those that may be made again are tended.

#include "collectives/engine/driver.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/algorithms/table.h"
#include "collectives/core/links.h"
#include "tests/collectives/engine/two_message_rank.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/transport.h"

namespace annulus {
namespace {

// A link that nothing uses, and that counts how often it is tended.
class TendedLink final : public Endpoint {
 public:
  explicit TendedLink(bool may_be_made_again) { limits_.may_be_made_again = may_be_made_again; }

  // When it was called, each time.
  const std::vector<Nanoseconds>& times() const { return times_; }
  int arms() const { return arms_; }

  const Limits& limits() const override { return limits_; }
  int peer() const override { return 1; }
  std::string Describe() const override { return "a link that counts"; }
  EndpointStats stats() const override { return {}; }
  Status AcquireSlot(size_t, std::byte**) override { return lost_; }
  Status PostSend(Send*) override { return lost_; }
  Status PostRecv(Recv*) override { return lost_; }
  void Release(Recv*) override {}
  Status Progress(bool* moved) override {
    times_.push_back(Now());
    *moved = true;
    return lost_;
  }
  bool Arm() override { return ++arms_, false; }
  bool Close() override { return true; }

 private:
  const Status lost_{Code::kPeerLost, "lost"};
  Limits limits_;
  std::vector<Nanoseconds> times_;
  int arms_ = 0;
};

// The driver of rank 0, whose collectives are those of a rank alone, so each ends in its first step.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(pair_.Make({.slot_bytes = kLargestSliceBytes, .slots = 8}));
    for (const int side : {0, 1}) ranks_[side].Start(side, pair_.Take(side));
    ASSERT_TRUE(DomainQueues::Open(nullptr, ReduceOn::kAuto, &queues_).ok());
    MakeDriver(std::make_unique<Engine>(0, PlanSettings(), Topology(), &links_, &ranks_[0].monitor));
  }
  void MakeDriver(std::unique_ptr<Engine> engine) {
    engine_ = std::move(engine);
    driver_ = std::make_unique<Driver>(engine_.get(), ranks_[0].messages.get(), &links_, queues_.get(),
                                       pair_.reactor(0), nullptr, &ranks_[0].monitor);
  }
  void TearDown() override {
    for (TwoMessageRank& each : ranks_) each.links.Close();
    two_.Close();
  }
  // Its collectives are those of two ranks, of which the other one does nothing.
  void MakeDriverOfTwoRanks() {
    const PlanSettings plan;
    for (const NeededLink& each : LinksNeeded(0, {plan, Topology(2)})) {
      pairs_.push_back(std::make_unique<ShmPair>());
      ASSERT_TRUE(pairs_.back()->Make({.slot_bytes = SlotBytes(plan), .slots = plan.slots}));
      two_.Add(each.peer, each.channel, pairs_.back()->Take(0));
    }
    MakeDriver(std::make_unique<Engine>(0, plan, Topology(2), &two_, &ranks_[0].monitor));
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
  // Drives messages until the link was tended so often, for kPatience at most; then tests that it was not so too often.
  void DriveUntilTended(size_t times, const WaitPolicy& policy) {
    TendedLink* const link = AddLink(true);
    const Deadline deadline = DeadlineAfter(kPatience);
    const std::function<bool()> is_over = [=] { return link->times().size() >= times || Now() > deadline; };
    ASSERT_TRUE(driver_->RunMessages(policy, {&is_over, deadline}, &verdict_)) << verdict_.message;
    ExpectTended(*link, times);
  }
  static void ExpectTended(const TendedLink& link, size_t times) {
    ASSERT_GE(link.times().size(), times) << "slept, or did not look";
    EXPECT_EQ(static_cast<size_t>(link.arms()), link.times().size());
    for (size_t i = 1; i < link.times().size(); ++i) {
      EXPECT_GE(link.times()[i] - link.times()[i - 1], Links::kTendEvery);
    }
  }
  TendedLink* AddLink(bool may_be_made_again) {
    auto link = std::make_unique<TendedLink>(may_be_made_again);
    TendedLink* const added = link.get();
    links_.Add(0, 0, std::move(link));
    return added;
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
  Links links_{1, PlanSettings().channels + 1};
  std::vector<std::unique_ptr<ShmPair>> pairs_;
  Links two_{2, PlanSettings().channels + 1};
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
  MakeDriverOfTwoRanks();
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
}

// Nothing else would wake it.
TEST_F(DriverTest, ADriveThatSleepsTendsLinksThatItDoesNotUse) { DriveUntilTended(3, WaitPolicy()); }

TEST_F(DriverTest, SoDoesOneThatSpins) { DriveUntilTended(3, {.spin = kHour}); }

TEST_F(DriverTest, SoDoesACollective) {
  TendedLink* const link = AddLink(true);
  MakeDriverOfTwoRanks();
  const Deadline deadline = DeadlineAfter(kPatience);
  const std::function<bool()> is_over = [=] { return link->times().size() >= 3 || Now() > deadline; };
  EXPECT_EQ(StartCall(kHour, {&is_over, deadline}), Driver::Outcome::kPaused);
  ExpectTended(*link, 3);
}

TEST_F(DriverTest, LinksThatCannotBeMadeAgainAreLeftAlone) {
  TendedLink* const link = AddLink(false);
  const Deadline end = DeadlineAfter(3 * Links::kTendEvery);
  const std::function<bool()> is_over = [end] { return Now() > end; };
  ASSERT_TRUE(driver_->RunMessages(WaitPolicy(), {&is_over, end}, &verdict_));
  EXPECT_TRUE(link->times().empty());
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
