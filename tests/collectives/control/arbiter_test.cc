// The arbiter's rules: every rank as the culprit, every kind of failure, reports in every order; and seeded random
// stories.
#include "collectives/control/arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 1000 * kSecond;

Call Allreduce(uint64_t sequence, uint64_t count = 200) {
  Call call;
  call.sequence = sequence;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.op = ReduceOp::kSum;
  call.count = count;
  return call;
}

Activity Inside(const Call& call) { return {call.sequence, true, {call}}; }
Activity Outside(uint64_t completed) {
  if (completed == 0) return {};
  return {completed, false, {Allreduce(completed)}};
}

Status Timeout() { return Status(Code::kTimeout, "no data for 30 s"); }
Status Lost(int peer) { return Status(Code::kPeerLost, "Connection reset by peer", peer, 104); }

// What the ranks do, and who says so: an arbiter is fed with it in a given order.
struct Story {
  int nranks;
  std::vector<Activity> doing;                         // By rank; what it answers.
  std::vector<bool> silent;                            // By rank; it never answers.
  std::map<int, Status> reports;                       // By rank.
  std::function<void(Arbiter*, Nanoseconds)> certain;  // May be empty: what decides by itself.
  size_t certain_after = 0;                            // How many reports come first.

  explicit Story(int n, const Activity& all) : nranks(n), doing(n, all), silent(n, false) {}

  void AllReport(const Status& failure, int except = -1) {
    for (int r = 0; r < nranks; ++r) {
      if (r != except) reports.insert_or_assign(r, failure);
    }
  }

  // Tells the story with the reports in `order`, one per millisecond, and returns the verdict. Answers come after the
  // first report.
  Verdict Tell(const std::vector<int>& order) const {
    Arbiter arbiter(nranks);
    Nanoseconds now = kStart;
    int queries = 0;
    for (size_t i = 0; i <= order.size(); ++i) {
      now += kMillisecond;
      if (certain && i == certain_after) certain(&arbiter, now);
      if (i < order.size()) {
        const int r = order[i];
        arbiter.Report(r, reports.at(r), doing[r].inside ? doing[r].recent[0] : Call{}, now);
      }
      if (!arbiter.TakeQuery()) continue;
      ++queries;
      for (int r = 0; r < nranks; ++r) {
        if (!silent[r]) arbiter.Answer(r, doing[r], now);
      }
    }
    while (!arbiter.verdict() && arbiter.deadline() < kNoDeadline) {
      now = std::max(now, arbiter.deadline());
      arbiter.Tick(now);
    }
    EXPECT_LE(queries, 1);
    EXPECT_LE(now, kStart + 10 * kMillisecond + Arbiter::kAnswerWindow);
    EXPECT_TRUE(arbiter.verdict().has_value());
    return arbiter.verdict().value_or(Verdict{});
  }

  // Every order of the reports gives the same verdict, which is returned. Only who noticed first (peer) may differ.
  Verdict TellInEveryOrder() {
    std::vector<int> order;
    for (const auto& [rank, report] : reports) order.push_back(rank);
    const Verdict first = Tell(order);
    const size_t most = certain ? order.size() : 0;
    for (certain_after = 0; certain_after <= most; ++certain_after) {
      std::sort(order.begin(), order.end());
      do {
        Verdict verdict = Tell(order);
        verdict.peer = first.peer;
        EXPECT_EQ(verdict, first) << verdict.message << " / " << first.message;
      } while (std::next_permutation(order.begin(), order.end()));
    }
    certain_after = 0;
    return first;
  }
};

struct Case {
  int nranks;
  int culprit;
};

class ArbiterTest : public testing::TestWithParam<Case> {
 protected:
  const int n_ = GetParam().nranks;
  const int culprit_ = GetParam().culprit;
  const std::string name_ = "rank " + std::to_string(culprit_);
};

TEST_P(ArbiterTest, ClosedControlConnectionIsADeath) {
  for (const Status& failure : {Timeout(), Lost(culprit_)}) {
    Story story(n_, Inside(Allreduce(7)));
    story.silent[culprit_] = true;
    story.AllReport(failure, culprit_);
    story.certain = [&](Arbiter* arbiter, Nanoseconds) { arbiter->Died(culprit_); };
    const Verdict verdict = story.TellInEveryOrder();
    EXPECT_EQ(verdict.code, Code::kPeerLost);
    EXPECT_EQ(verdict.rank, culprit_);
    EXPECT_EQ(verdict.message, name_ + " died (its control connection closed without a goodbye)");
  }
}

TEST_P(ArbiterTest, DeathNeedsNoReport) {
  Arbiter arbiter(n_);
  arbiter.Died(culprit_);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->rank, culprit_);
  EXPECT_FALSE(arbiter.TakeQuery());
}

TEST_P(ArbiterTest, SilentRankIsStopped) {
  Story story(n_, Inside(Allreduce(7)));
  story.silent[culprit_] = true;
  story.AllReport(Timeout(), culprit_);
  const Verdict verdict = story.TellInEveryOrder();
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.rank, culprit_);
  EXPECT_EQ(verdict.message, name_ + " does not respond (stopped or unreachable)");
  EXPECT_FALSE(verdict.advice.empty());
}

TEST_P(ArbiterTest, RankThatLeftBeforeTheCollectiveIsNamed) {
  for (const Status& failure : {Timeout(), Lost(culprit_)}) {
    Story story(n_, Inside(Allreduce(7)));
    story.silent[culprit_] = true;
    story.AllReport(failure, culprit_);
    story.certain = [&](Arbiter* arbiter, Nanoseconds now) { arbiter->Goodbye(culprit_, Outside(6), now); };
    const Verdict verdict = story.TellInEveryOrder();
    EXPECT_EQ(verdict.code, Code::kPeerLost);
    EXPECT_EQ(verdict.rank, culprit_);
    EXPECT_EQ(verdict.message, name_ + " has left (its communicator was destroyed) while others are in allreduce #7");
  }
}

TEST_P(ArbiterTest, RankThatFinishedTheCollectiveMayLeave) {
  if (n_ < 3) return;
  // One of the others has not entered: it is at fault, not the one that left.
  const int late = (culprit_ + 1) % n_;
  Story story(n_, Inside(Allreduce(7)));
  story.doing[late] = Outside(6);
  story.silent[culprit_] = true;
  for (int r = 0; r < n_; ++r) {
    if (r != late && r != culprit_) story.reports.emplace(r, Timeout());
  }
  story.certain = [&](Arbiter* arbiter, Nanoseconds now) { arbiter->Goodbye(culprit_, Outside(7), now); };
  EXPECT_EQ(story.TellInEveryOrder().rank, late);
}

TEST_P(ArbiterTest, OddCallIsAMismatchInWhicheverField) {
  const Call usual = Allreduce(7);
  struct Variant {
    std::function<void(Call*)> change;
    std::string says, rest;
  };
  const Variant variants[] = {
      {[](Call* call) { call->count = 100; }, "allreduce #7 with count 100", "with count 200"},
      {[](Call* call) { call->type = DataType::kInt32; }, "allreduce #7 with type int32", "with type float32"},
      {[](Call* call) { call->op = ReduceOp::kMax; }, "allreduce #7 with operation max", "with operation sum"},
      {[](Call* call) { call->root = 1; }, "allreduce #7 with root 1", "with root 0"},
      {[](Call* call) { call->kind = CollectiveKind::kBarrier; }, "barrier as collective #7", "called allreduce"},
  };
  const int odd = n_ == 2 ? 1 : culprit_;  // With two ranks, the higher one is the odd one.
  for (const Variant& variant : variants) {
    for (const Status& failure :
         {Timeout(), Status(Code::kMismatch, "tag"), Status(Code::kProtocol, "slice too large", odd, 0)}) {
      Story story(n_, Inside(usual));
      Call changed = usual;
      variant.change(&changed);
      story.doing[odd] = Inside(changed);
      story.AllReport(failure);
      const Verdict verdict = story.TellInEveryOrder();
      EXPECT_EQ(verdict.code, Code::kMismatch);
      EXPECT_EQ(verdict.rank, odd);
      const std::string others = n_ == 2 ? "rank 0" : "the others";
      EXPECT_EQ(verdict.message,
                "rank " + std::to_string(odd) + " called " + variant.says + ", " + others + " " + variant.rest);
    }
  }
}

TEST_P(ArbiterTest, MismatchIsFoundInACallThatIsOver) {
  if (n_ < 3) return;
  // A count of 0 ends at once: its rank may be several calls further, and the others wait for it in #7.
  Story story(n_, Inside(Allreduce(7)));
  story.doing[culprit_] = {9, true, {Allreduce(9), Allreduce(8), Allreduce(7, 0), Allreduce(6)}};
  story.AllReport(Timeout());
  const Verdict verdict = story.TellInEveryOrder();
  EXPECT_EQ(verdict.code, Code::kMismatch);
  EXPECT_EQ(verdict.rank, culprit_);
  EXPECT_EQ(verdict.message, name_ + " called allreduce #7 with count 0, the others with count 200");
}

TEST_P(ArbiterTest, RankThatHasNotEnteredIsLate) {
  for (const uint64_t completed : {uint64_t{0}, uint64_t{4}, uint64_t{6}}) {
    Story story(n_, Inside(Allreduce(7)));
    story.doing[culprit_] = Outside(completed);
    story.AllReport(Timeout(), culprit_);
    const Verdict verdict = story.TellInEveryOrder();
    EXPECT_EQ(verdict.code, Code::kTimeout);
    EXPECT_EQ(verdict.rank, culprit_);
    const std::string last =
        completed == 0 ? "it called no collective yet" : "it last completed #" + std::to_string(completed);
    EXPECT_EQ(verdict.message, name_ + " has not entered allreduce #7 (" + last + ")");
    EXPECT_EQ(verdict.call, Allreduce(7));
  }
}

TEST_P(ArbiterTest, RankAheadIsNotAtFault) {
  if (n_ < 3) return;
  const int late = (culprit_ + 1) % n_;
  for (const bool ahead_inside : {true, false}) {
    Story story(n_, Inside(Allreduce(7)));
    story.doing[culprit_] = Activity{8, ahead_inside, {Allreduce(8), Allreduce(7)}};
    story.doing[late] = Outside(6);
    story.AllReport(Timeout(), late);
    if (!ahead_inside) story.reports.erase(culprit_);
    const Verdict verdict = story.TellInEveryOrder();
    EXPECT_EQ(verdict.code, Code::kTimeout);
    EXPECT_EQ(verdict.rank, late) << verdict.message;
  }
}

TEST_P(ArbiterTest, RankStillInAnEarlierCallHoldsUpTheOthers) {
  Story story(n_, Activity{7, true, {Allreduce(7), Allreduce(6)}});
  story.doing[culprit_] = Inside(Allreduce(6));
  story.AllReport(Timeout(), culprit_);
  const Verdict verdict = story.TellInEveryOrder();
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.rank, culprit_);
  EXPECT_EQ(verdict.message, name_ + " is still in allreduce #6, which others have completed");
}

TEST_P(ArbiterTest, BrokenLinkBetweenLiveRanksIsNamed) {
  const int other = (culprit_ + 1) % n_;
  Story story(n_, Inside(Allreduce(7)));
  story.AllReport(Timeout());
  story.reports.insert_or_assign(culprit_, Lost(other));
  story.reports.insert_or_assign(other, Lost(culprit_));
  const Verdict verdict = story.TellInEveryOrder();
  const int low = std::min(culprit_, other);
  const int high = std::max(culprit_, other);
  EXPECT_EQ(verdict.code, Code::kPeerLost);
  EXPECT_EQ(verdict.message, "the link between rank " + std::to_string(low) + " and rank " + std::to_string(high) +
                                 " broke: Connection reset by peer");
  EXPECT_EQ(verdict.peer, low);
  EXPECT_EQ(verdict.rank, high);
  EXPECT_EQ(verdict.call, Allreduce(7));
}

TEST_P(ArbiterTest, BrokenLinkIsNotBlamedOnARankThatIsElsewhere) {
  if (n_ < 3) return;
  Story story(n_, Inside(Allreduce(7)));
  const int a = (culprit_ + 1) % n_;
  const int b = (culprit_ + 2) % n_;
  story.doing[culprit_] = Outside(6);
  story.reports.insert_or_assign(a, Lost(b));
  EXPECT_EQ(story.TellInEveryOrder().rank, b);
  story.doing[culprit_] = Inside(Allreduce(7));
  story.silent[culprit_] = true;
  EXPECT_EQ(story.TellInEveryOrder().rank, b);
}

TEST_P(ArbiterTest, CauseWinsOverTheLinksThatItBreaks) {
  for (const Code code : {Code::kOutOfMemory, Code::kSystem, Code::kInternal, Code::kProtocol}) {
    Story story(n_, Inside(Allreduce(7)));
    story.AllReport(Lost(culprit_));
    story.reports.insert_or_assign(culprit_, Status(code, "out of luck", Status::kNoRank, 12));
    const Verdict verdict = story.TellInEveryOrder();
    EXPECT_EQ(verdict.code, code);
    EXPECT_EQ(verdict.rank, culprit_);
    EXPECT_EQ(verdict.os_errno, 12);
    EXPECT_EQ(verdict.message, name_ + " failed in allreduce #7: out of luck");
  }
}

TEST_P(ArbiterTest, AbortDecidesAtOnce) {
  Story story(n_, Inside(Allreduce(7)));
  story.AllReport(Timeout(), culprit_);
  story.certain = [&](Arbiter* arbiter, Nanoseconds now) { arbiter->Settled(culprit_, AbortVerdict(culprit_), now); };
  const Verdict verdict = story.Tell({});
  EXPECT_EQ(verdict.code, Code::kAborted);
  EXPECT_EQ(verdict.rank, culprit_);
  EXPECT_EQ(verdict.message, name_ + " aborted the communicator");
}

TEST_P(ArbiterTest, BrokenControlMessageDecidesAtOnce) {
  Arbiter arbiter(n_);
  arbiter.Broken(culprit_, "a length of 4000000000 bytes", kStart);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->code, Code::kProtocol);
  EXPECT_EQ(arbiter.verdict()->rank, culprit_);
}

TEST_P(ArbiterTest, FailureOutsideAnyCollectiveIsTheReport) {
  Story story(n_, Outside(0));
  story.reports.emplace(culprit_, Status(Code::kUnsupported, "no transport"));
  const Verdict verdict = story.TellInEveryOrder();
  EXPECT_EQ(verdict.code, Code::kUnsupported);
  EXPECT_EQ(verdict.rank, culprit_);
  EXPECT_EQ(verdict.call, Call{});
  EXPECT_EQ(verdict.message, name_ + " failed: no transport");
}

TEST_P(ArbiterTest, DepartureInPeaceIsNoFailure) {
  Arbiter arbiter(n_);
  arbiter.Goodbye(culprit_, Outside(6), kStart);
  arbiter.Died(culprit_);
  arbiter.Tick(kStart + kSecond);
  EXPECT_FALSE(arbiter.verdict());
  EXPECT_EQ(arbiter.deadline(), kNoDeadline);
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int n = 2; n <= 5; ++n) {
    for (int culprit = 0; culprit < n; ++culprit) cases.push_back({n, culprit});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(EveryCulprit, ArbiterTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return "N" + std::to_string(info.param.nranks) + "Rank" + std::to_string(info.param.culprit);
});

TEST(ArbiterMismatch, EqualPartiesBlameTheHighestRank) {
  Story story(4, Inside(Allreduce(7)));
  story.doing[0] = story.doing[3] = Inside(Allreduce(7, 100));
  story.AllReport(Timeout());
  const Verdict verdict = story.TellInEveryOrder();
  EXPECT_EQ(verdict.rank, 3);
  EXPECT_EQ(verdict.message, "ranks 0 and 3 called allreduce #7 with count 100, the others with count 200");
}

TEST(ArbiterMismatch, ThreePartiesAreNotCalledTheOthers) {
  Story story(5, Inside(Allreduce(7)));
  story.doing[1] = Inside(Allreduce(7, 100));
  story.doing[4] = Inside(Allreduce(7, 300));
  story.AllReport(Timeout());
  EXPECT_EQ(story.TellInEveryOrder().message,
            "rank 4 called allreduce #7 with count 300, ranks 0, 2 and 3 with count 200");
}

TEST(ArbiterText, LongListsAreCut) {
  std::vector<int> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  Arbiter arbiter(101);
  arbiter.Report(100, Timeout(), Allreduce(1), kStart);
  arbiter.Tick(kStart + Arbiter::kSignInterval);
  arbiter.Tick(kStart + Arbiter::kAnswerWindow);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->message,
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more do not respond (stopped or unreachable)");
  EXPECT_EQ(arbiter.verdict()->rank, 0);
}

TEST(ArbiterSettle, LaterReportOfTheCauseStillCounts) {
  Arbiter arbiter(2);
  arbiter.Report(0, Lost(1), Allreduce(7), kStart);
  EXPECT_TRUE(arbiter.TakeQuery());
  arbiter.Answer(0, Inside(Allreduce(7)), kStart);
  arbiter.Answer(1, Inside(Allreduce(7)), kStart);
  EXPECT_FALSE(arbiter.verdict());
  EXPECT_EQ(arbiter.deadline(), kStart + Arbiter::kSettleWindow);
  arbiter.Report(1, Status(Code::kOutOfMemory, "no room for 3 GiB"), Allreduce(7), kStart + kMillisecond);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->code, Code::kOutOfMemory);
}

}  // namespace
}  // namespace annulus
