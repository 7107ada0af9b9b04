// The arbiter when equally many ranks made each of two differing calls: ranks that are on their way decide who is
// wrong.
#include <gtest/gtest.h>

#include "collectives/control/arbiter.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 1000 * kSecond;

Call Allreduce(uint64_t sequence, uint64_t count = 200) {
  Call call;
  call.sequence = sequence;
  call.kind = CollectiveKind::kAllreduce;
  call.count = count;
  return call;
}

Call Odd() { return Allreduce(7, 100); }
Activity Inside(const Call& call) { return {call.sequence, true, {call}}; }
Activity Before() { return {6, false, {Allreduce(6)}}; }
Status Differs() { return Status(Code::kMismatch, "a slice of another call came"); }

// Ranks as the arbiter sees them: what each does, and a clock that the test moves.
class Job {
 public:
  explicit Job(int nranks) : arbiter_(nranks), doing_(nranks, Before()) {}

  void Enter(int rank, const Call& call) { doing_[rank] = Inside(call); }
  void Silence(int rank) { doing_[rank] = std::nullopt; }
  void Report(int rank, const Status& failure) {
    arbiter_.Report(rank, failure, doing_[rank]->recent[0], now_);
    Serve();
  }
  // Lets time pass up to the arbiter's next deadline.
  void Pass() {
    ASSERT_FALSE(verdict()) << verdict()->message;
    ASSERT_NE(arbiter_.deadline(), kNoDeadline);
    ASSERT_GT(arbiter_.deadline(), now_);
    now_ = arbiter_.deadline();
    arbiter_.Tick(now_);
    Serve();
  }
  void PassUntilVerdict() {
    while (!verdict() && !testing::Test::HasFatalFailure()) Pass();
  }

  Arbiter* arbiter() { return &arbiter_; }
  const std::optional<Verdict>& verdict() const { return arbiter_.verdict(); }
  Nanoseconds elapsed() const { return now_ - kStart; }
  Nanoseconds now() const { return now_; }
  int queries() const { return queries_; }

 private:
  void Serve() {
    if (!arbiter_.TakeQuery()) return;
    ++queries_;
    for (size_t r = 0; r < doing_.size(); ++r) {
      if (doing_[r]) arbiter_.Answer(static_cast<int>(r), *doing_[r], now_);
    }
  }

  Arbiter arbiter_;
  std::vector<std::optional<Activity>> doing_;  // None: does not answer.
  Nanoseconds now_ = kStart;
  int queries_ = 0;
};

// Whoever of three is wrong, and whoever of the two that came first reports it.
TEST(ArbiterTie, ThirdRankDecidesWhichOfTwoIsWrong) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    for (int last = 0; last < 3; ++last) {
      if (last == culprit) continue;
      const int other = 3 - culprit - last;
      for (const int reporter : {culprit, other}) {
        SCOPED_TRACE(testing::Message() << "culprit " << culprit << ", last " << last << ", reporter " << reporter);
        Job job(3);
        job.Enter(culprit, Odd());
        job.Enter(other, Allreduce(7));
        job.Report(reporter, Differs());
        job.Pass();  // Asked again, and still not there.
        ASSERT_FALSE(job.verdict());
        job.Enter(last, Allreduce(7));
        job.Pass();
        ASSERT_TRUE(job.verdict());
        EXPECT_EQ(job.verdict()->code, Code::kMismatch);
        EXPECT_EQ(job.verdict()->rank, culprit);
        EXPECT_EQ(job.verdict()->message,
                  "rank " + std::to_string(culprit) + " called allreduce #7 with count 100, the others with count 200");
        EXPECT_EQ(job.elapsed(), 2 * Arbiter::kTieInterval);
        EXPECT_EQ(job.queries(), 3);
      }
    }
  }
}

TEST(ArbiterTie, ReportOfTheThirdRankDecidesAtOnce) {
  Job job(3);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(1, Differs());
  ASSERT_FALSE(job.verdict());
  job.Enter(2, Allreduce(7));
  job.Report(2, Differs());
  ASSERT_TRUE(job.verdict());
  EXPECT_EQ(job.verdict()->rank, 0);
  EXPECT_EQ(job.elapsed(), 0);
}

TEST(ArbiterTie, ThirdPartyDoesNotDecide) {
  Job job(4);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(1, Differs());
  job.Enter(2, Allreduce(7, 300));
  job.Pass();
  ASSERT_FALSE(job.verdict());
  job.Enter(3, Odd());
  job.Pass();
  ASSERT_TRUE(job.verdict());
  EXPECT_EQ(job.verdict()->message, "rank 2 called allreduce #7 with count 300, ranks 0 and 3 with count 100");
}

TEST(ArbiterTie, LastsNoLongerThanItsWindow) {
  Job job(3);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(0, Differs());
  job.PassUntilVerdict();
  EXPECT_EQ(job.elapsed(), Arbiter::kTieWindow);
  EXPECT_LE(job.queries(), 1 + Arbiter::kTieWindow / Arbiter::kTieInterval);
  EXPECT_EQ(job.verdict()->rank, 1);
  EXPECT_EQ(job.verdict()->message, "rank 1 called allreduce #7 with count 200, rank 0 with count 100");
}

TEST(ArbiterTie, DeathDuringATieDecidesAtOnce) {
  Job job(3);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(0, Differs());
  job.arbiter()->Died(2);
  ASSERT_TRUE(job.verdict());
  EXPECT_EQ(job.verdict()->code, Code::kPeerLost);
  EXPECT_EQ(job.verdict()->rank, 2);
}

TEST(ArbiterTie, RankThatLeavesIsNotWaitedFor) {
  Job job(3);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(0, Differs());
  ASSERT_FALSE(job.verdict());
  job.arbiter()->Goodbye(2, Before(), job.now());
  ASSERT_TRUE(job.verdict());
  EXPECT_EQ(job.verdict()->rank, 1);
}

// A rank that did not answer in its time, and one that failed before that call, will not make it.
TEST(ArbiterTie, WaitsOnlyForRanksThatMayStillCome) {
  Job silent(3);
  silent.Enter(0, Odd());
  silent.Enter(1, Allreduce(7));
  silent.Silence(2);
  silent.Report(0, Differs());
  silent.PassUntilVerdict();
  EXPECT_EQ(silent.elapsed(), Arbiter::kAnswerWindow);
  EXPECT_EQ(silent.verdict()->code, Code::kMismatch);

  Job failed(3);
  failed.Enter(0, Odd());
  failed.Enter(1, Allreduce(7));
  failed.Enter(2, Allreduce(6));
  failed.arbiter()->Report(2, Status(Code::kTimeout, "late"), Allreduce(6), failed.now());
  failed.Report(0, Differs());
  EXPECT_EQ(failed.elapsed(), 0);
  EXPECT_TRUE(failed.verdict());
}

// Two ranks are all there are.
TEST(ArbiterTie, TwoRanksAreJudgedAtOnce) {
  Job job(2);
  job.Enter(0, Odd());
  job.Enter(1, Allreduce(7));
  job.Report(0, Differs());
  ASSERT_TRUE(job.verdict());
  EXPECT_EQ(job.verdict()->message, "rank 1 called allreduce #7 with count 200, rank 0 with count 100");
}

}  // namespace
}  // namespace annulus
