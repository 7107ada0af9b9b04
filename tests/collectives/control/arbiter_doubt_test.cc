// Doubts: a rank that waits long makes the arbiter ask all. Only a mismatch ends in a verdict.
#include <gtest/gtest.h>

#include "collectives/control/arbiter.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 1000 * kSecond;
constexpr int kRanks = 4;

Call Numbered(uint64_t sequence, CollectiveKind kind = CollectiveKind::kAllreduce) {
  Call call;
  call.sequence = sequence;
  call.kind = kind;
  call.type = DataType::kFloat32;
  call.op = ReduceOp::kSum;
  call.count = 1 << 20;
  return call;
}

Activity Inside(const Call& call) { return {call.sequence, true, {call}}; }

void AnswerAll(Arbiter* arbiter, Nanoseconds now) {
  for (int rank = 0; rank < kRanks; ++rank) arbiter->Answer(rank, Inside(Numbered(5)), now);
}

TEST(ArbiterDoubt, MismatchIsFoundWithoutAReport) {
  Arbiter arbiter(kRanks);
  arbiter.Doubt(kStart);
  ASSERT_TRUE(arbiter.TakeQuery());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto kind = rank < 2 ? CollectiveKind::kAllreduce : CollectiveKind::kReduceScatter;
    EXPECT_FALSE(arbiter.verdict().has_value());
    arbiter.Answer(rank, Inside(Numbered(5, kind)), kStart + kMillisecond);
  }
  ASSERT_TRUE(arbiter.verdict().has_value());
  EXPECT_EQ(arbiter.verdict()->code, Code::kMismatch);
  EXPECT_EQ(arbiter.verdict()->rank, kRanks - 1);
}

TEST(ArbiterDoubt, AgreementAndSilenceHaveNoConsequence) {
  Arbiter arbiter(kRanks);
  Nanoseconds now = kStart;
  for (const bool silent : {false, true, false}) {
    arbiter.Doubt(now);
    EXPECT_TRUE(arbiter.TakeQuery());
    for (int rank = silent ? 1 : 0; rank < kRanks; ++rank) arbiter.Answer(rank, Inside(Numbered(5)), now);
    if (silent) {
      EXPECT_EQ(arbiter.deadline(), now + Arbiter::kAnswerWindow);
      arbiter.Tick(arbiter.deadline());
    }
    EXPECT_FALSE(arbiter.verdict().has_value());
    EXPECT_EQ(arbiter.deadline(), kNoDeadline);
    now += Arbiter::kDoubtPause;
  }
}

TEST(ArbiterDoubt, ManyRanksDoubtAtOnceAndAreAskedOnce) {
  Arbiter arbiter(kRanks);
  arbiter.Doubt(kStart);
  EXPECT_TRUE(arbiter.TakeQuery());
  arbiter.Doubt(kStart + 1);
  EXPECT_FALSE(arbiter.TakeQuery());
  AnswerAll(&arbiter, kStart + 2);
  arbiter.Doubt(kStart + Arbiter::kDoubtPause - 1);
  EXPECT_FALSE(arbiter.TakeQuery());
  arbiter.Doubt(kStart + Arbiter::kDoubtPause);
  EXPECT_TRUE(arbiter.TakeQuery());
}

// What ranks answered to a doubt does not count as an answer to the investigation: one may have stopped since.
TEST(ArbiterDoubt, ReportAsksAnew) {
  for (const bool over : {false, true}) {
    Arbiter arbiter(kRanks);
    arbiter.Doubt(kStart);
    ASSERT_TRUE(arbiter.TakeQuery());
    for (int rank = over ? 0 : 1; rank < kRanks; ++rank) arbiter.Answer(rank, Inside(Numbered(5)), kStart);
    arbiter.Report(1, Status(Code::kTimeout, "no data for 30 s"), Numbered(5), kStart + kMillisecond);
    ASSERT_TRUE(arbiter.TakeQuery());
    EXPECT_FALSE(arbiter.verdict().has_value());
    for (int rank = 0; rank < kRanks - 1; ++rank) arbiter.Answer(rank, Inside(Numbered(5)), kStart + 2 * kMillisecond);
    arbiter.Doubt(kStart + kSecond);  // Not heeded any more.
    EXPECT_FALSE(arbiter.TakeQuery());
    arbiter.Tick(arbiter.deadline());
    EXPECT_TRUE(arbiter.TakeQuery()) << "a sign of life";
    EXPECT_FALSE(arbiter.verdict().has_value());
    arbiter.Tick(arbiter.deadline());
    ASSERT_TRUE(arbiter.verdict().has_value());
    EXPECT_EQ(arbiter.verdict()->rank, kRanks - 1);  // It is silent.
  }
}

// A tie waits for a rank on its way, as in an investigation.
TEST(ArbiterDoubt, TieWaitsForWhoIsOnItsWay) {
  Arbiter arbiter(3);
  arbiter.Doubt(kStart);
  ASSERT_TRUE(arbiter.TakeQuery());
  const Activity other = Inside(Numbered(5, CollectiveKind::kReduceScatter));
  arbiter.Answer(0, other, kStart);
  arbiter.Answer(1, Inside(Numbered(5)), kStart);
  arbiter.Answer(2, Activity{4, false, {Numbered(4)}}, kStart);
  EXPECT_FALSE(arbiter.verdict().has_value());
  arbiter.Tick(arbiter.deadline());
  ASSERT_TRUE(arbiter.TakeQuery());
  arbiter.Answer(2, Inside(Numbered(5)), kStart + 30 * kMillisecond);
  ASSERT_TRUE(arbiter.verdict().has_value());
  EXPECT_EQ(arbiter.verdict()->rank, 0);
}

}  // namespace
}  // namespace annulus
