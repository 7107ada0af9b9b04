// A rank's attempts to reach rank 0's door, in virtual time.
#include "collectives/control/redial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/collectives/control/sim_timer.h"
#include "transport/sim/sim_clock.h"

namespace annulus {
namespace {

// Answers each attempt as `answer` says, after `delay`; a delay beyond the limit is a timeout.
class Net : public ControlNet {
 public:
  Nanoseconds Now() const override { return clock.now(); }
  std::unique_ptr<ControlTimer> MakeTimer() override { return std::make_unique<SimTimer>(&clock); }
  Status Adopt(SealedFd, size_t, std::shared_ptr<MessageStream>*) override { return Status(); }
  Status OpenDoor(int, Expects, Returned) override { return Status(); }
  void Dial(const StreamEndpoint&, Nanoseconds limit, Dialled done) override {
    CancelDial();
    limits.push_back(limit);
    times.push_back(Now());
    dial_ = std::make_shared<Dialled>(std::move(done));
    const Status ends = delay < limit ? answer : Status(Code::kTimeout, "no answer");
    clock.At(Now() + std::min(delay, limit), [ends, dial = std::weak_ptr<Dialled>(dial_)] {
      const std::shared_ptr<Dialled> run = dial.lock();
      if (run != nullptr) (*run)(ends, 7);
    });
  }
  void CancelDial() override { dial_ = nullptr; }

  SimClock clock{1};
  Status answer;
  Nanoseconds delay = kMillisecond;
  std::vector<Nanoseconds> limits;  // Time limit of each attempt.
  std::vector<Nanoseconds> times;   // Start of each attempt.

 private:
  std::shared_ptr<Dialled> dial_;
};

class RedialTest : public testing::Test {
 protected:
  void RunFor(Nanoseconds time) {
    bool is_over = false;
    net_.clock.At(net_.Now() + time, [&is_over] { is_over = true; });
    while (!is_over && net_.clock.RunNext()) continue;
  }

  Net net_;
  int connected_ = 0;
  int refused_ = 0;
  int late_ = 0;
  std::function<void()> on_connected_ = [] {};
  Redial redial_{&net_,
                 {[this](const SealedFd&) {
                    ++connected_;
                    on_connected_();
                    return true;
                  },
                  [this] { ++refused_; }, [this](const Status&) { ++late_; }}};
};

TEST_F(RedialTest, ReachesTheDoorAtOnce) {
  redial_.Begin(3 * kSecond);
  EXPECT_TRUE(redial_.active());
  RunFor(10 * kSecond);
  EXPECT_EQ(connected_, 1);
  EXPECT_EQ(net_.times, std::vector<Nanoseconds>{0});
  EXPECT_FALSE(redial_.active());
}

TEST_F(RedialTest, TellsARankZeroThatIsSlowFromASilentPath) {
  net_.answer = Status(Code::kTimeout, "accepted, and not answered");
  redial_.Begin(3 * kSecond);
  RunFor(kSecond);
  EXPECT_TRUE(redial_.awaits_rank_0());
  net_.answer = Status(Code::kTimeout, "no connection", Status::kNoRank, ETIMEDOUT);
  RunFor(kSecond);
  EXPECT_FALSE(redial_.awaits_rank_0());
  EXPECT_EQ(late_, 0);
  RunFor(10 * kSecond);
  EXPECT_EQ(late_, 1);
}

TEST_F(RedialTest, AttemptsThatFailAtOnceStayBounded) {
  net_.answer = Status::System("connecting to rank 0", ENETUNREACH);
  redial_.Begin(8 * kSecond);
  RunFor(20 * kSecond);
  EXPECT_EQ(late_, 1);
  EXPECT_GT(net_.limits.size(), 100u);
  for (const Nanoseconds limit : net_.limits) {
    ASSERT_GT(limit, 0);
    ASSERT_LT(limit, 10 * kSecond);
  }
}

TEST_F(RedialTest, AttemptsTakeLongerOnALongPath) {
  net_.delay = kSecond;
  redial_.Begin(8 * kSecond);
  RunFor(20 * kSecond);
  EXPECT_EQ(connected_, 1);
  EXPECT_EQ(late_, 0);
}

TEST_F(RedialTest, NobodyAtTheDoorEndsTheAttempts) {
  net_.answer = Status::System("connecting to rank 0", ECONNREFUSED);
  redial_.Begin(3 * kSecond);
  RunFor(10 * kSecond);
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(net_.times.size(), 1u);
}

// As after a restart, whose listener has the port of the rank 0 that was killed.
TEST_F(RedialTest, SomebodyElseAtTheDoorEndsTheAttempts) {
  for (const Code code : {Code::kProtocol, Code::kMismatch}) {
    net_.answer = Status(code, "of another run, job or key");
    net_.times.clear();
    refused_ = 0;
    redial_.Begin(3 * kSecond);
    RunFor(10 * kSecond);
    EXPECT_EQ(refused_, 1) << CodeName(code);
    EXPECT_EQ(net_.times.size(), 1u) << CodeName(code);
  }
  EXPECT_EQ(late_, 0);
}

TEST_F(RedialTest, NothingFollowsStop) {
  net_.answer = Status::System("connecting to rank 0", ENETUNREACH);
  redial_.Begin(3 * kSecond);
  RunFor(10 * kMillisecond);  // Between two attempts.
  redial_.Stop();
  RunFor(10 * kSecond);
  EXPECT_EQ(net_.times.size(), 1u);
  EXPECT_EQ(late_ + refused_ + connected_, 0);
}

// The connection replaces one whose next attempt was due.
TEST_F(RedialTest, ANewBeginForgetsThePauseOfTheOldOne) {
  net_.answer = Status::System("connecting to rank 0", ENETUNREACH);
  redial_.Begin(3 * kSecond);
  RunFor(10 * kMillisecond);
  net_.answer = Status();
  redial_.Begin(3 * kSecond);
  RunFor(10 * kSecond);
  EXPECT_EQ(connected_, 1);
  EXPECT_EQ(net_.times.size(), 2u);
}

TEST_F(RedialTest, AConnectionThatBreaksEachTimeIsMadeLessAndLessOften) {
  on_connected_ = [this] { net_.clock.At(net_.Now() + kMillisecond, [this] { redial_.Begin(3 * kSecond); }); };
  redial_.Begin(3 * kSecond);
  RunFor(20 * kSecond);
  EXPECT_GT(connected_, 15);
  EXPECT_LT(connected_, 30);
}

TEST_F(RedialTest, AConnectionThatHeldIsMadeAgainAtOnce) {
  redial_.Begin(3 * kSecond);
  RunFor(5 * kSecond);
  const Nanoseconds broke_at = net_.Now();
  redial_.Begin(3 * kSecond);
  RunFor(5 * kSecond);
  EXPECT_EQ(connected_, 2);
  EXPECT_EQ(net_.times.back(), broke_at);
}

}  // namespace
}  // namespace annulus
