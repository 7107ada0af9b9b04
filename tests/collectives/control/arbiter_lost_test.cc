// The arbiter and ranks whose control connection broke or which do not answer: it waits for them, and judges by where
// they are now. A silent rank, which may be paused, is named only where nothing else is known to be the cause.
#include <gtest/gtest.h>

#include "collectives/control/arbiter.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

constexpr Nanoseconds kStart = 1000 * kSecond;

Call Allreduce(uint64_t sequence) {
  Call call;
  call.sequence = sequence;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.count = 200;
  return call;
}

Activity In(uint64_t sequence) { return {sequence, true, {Allreduce(sequence)}}; }
Activity After(uint64_t sequence) { return {sequence, false, {Allreduce(sequence)}}; }
Status Timeout() { return Status(Code::kTimeout, "the collective did not finish before its deadline"); }

TEST(ArbiterLostTest, NoReportIsJudgedWhileARankIsLost) {
  Arbiter arbiter(3);
  arbiter.Lost(1);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  arbiter.Answer(2, In(7), kStart);
  arbiter.Tick(kStart + 3 * Arbiter::kAnswerWindow);
  EXPECT_FALSE(arbiter.verdict());
  const Nanoseconds back = kStart + 3 * Arbiter::kAnswerWindow;
  arbiter.Found(1, back);
  EXPECT_TRUE(arbiter.TakeQuery());
  arbiter.Answer(0, In(7), back, arbiter.question());
  arbiter.Answer(1, After(6), back, arbiter.question());
  arbiter.Answer(2, In(7), back, arbiter.question());
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->rank, 1) << arbiter.verdict()->message;
}

TEST(ArbiterLostTest, ARankThatIsGivenUpAndRankZeroHaveLostEachOther) {
  Arbiter arbiter(3);
  arbiter.Lost(1);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  arbiter.Answer(0, In(7), kStart);
  arbiter.Answer(2, In(7), kStart);
  arbiter.GiveUp(1, kStart + 4 * kSecond);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->message, "rank 0 and rank 1 lost each other: nothing passes between them");
  EXPECT_EQ(*arbiter.verdict(), LostPathVerdict({1}));
}

// Rank 1 says so of itself, and cannot be told what the others know.
TEST(ArbiterLostTest, ThatComesBeforeWhateverElseIsKnown) {
  for (const Status& failure :
       {Status(Code::kSystem, "out of luck"), Timeout(), Status(Code::kPeerLost, "Connection reset by peer", 0, 104)}) {
    Arbiter arbiter(3);
    arbiter.Lost(1);
    Activity other = In(7);
    other.recent[0].count = 100;
    arbiter.Report(2, failure, other.recent[0], kStart);
    arbiter.Answer(0, In(7), kStart);
    arbiter.Answer(2, other, kStart);
    EXPECT_FALSE(arbiter.verdict());
    arbiter.GiveUp(1, kStart + 4 * kSecond);
    ASSERT_TRUE(arbiter.verdict());
    EXPECT_EQ(*arbiter.verdict(), LostPathVerdict({1})) << arbiter.verdict()->message;
  }
}

TEST(ArbiterLostTest, APathThatIsLostNeedsNoReport) {
  Arbiter arbiter(3);
  arbiter.Lost(2);
  arbiter.Unreachable(2);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(*arbiter.verdict(), LostPathVerdict({2}));
}

TEST(ArbiterLostTest, SeveralAreNamedTogether) {
  Arbiter arbiter(4);
  arbiter.Lost(1);
  arbiter.Lost(3);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  arbiter.Answer(0, In(7), kStart);
  arbiter.Answer(2, In(7), kStart);
  arbiter.GiveUp(1, kStart + 4 * kSecond);
  EXPECT_FALSE(arbiter.verdict());
  arbiter.GiveUp(3, kStart + 4 * kSecond);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->message, "rank 0 and ranks 1 and 3 lost each other: nothing passes between them");
}

TEST(ArbiterLostTest, AnAbortDecidesMeanwhile) {
  Arbiter arbiter(3);
  arbiter.Lost(1);
  Verdict aborted;
  aborted.code = Code::kAborted;
  aborted.rank = 2;
  arbiter.Settled(2, aborted, kStart);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(*arbiter.verdict(), aborted);
}

// Rank 1 was outside #7 when the doubt asked, and is in it now; rank 2 never comes.
TEST(ArbiterLostTest, AnAnswerThatWasLongOnItsWayBlamesNobody) {
  Arbiter arbiter(3);
  arbiter.Doubt(kStart);
  ASSERT_TRUE(arbiter.TakeQuery());
  const uint32_t doubt = arbiter.question();
  arbiter.Answer(0, In(7), kStart, doubt);
  arbiter.Answer(2, After(6), kStart, doubt);
  const Nanoseconds deadline = kStart + 3 * kSecond;
  arbiter.Tick(deadline);
  arbiter.Report(0, Timeout(), Allreduce(7), deadline);
  ASSERT_TRUE(arbiter.TakeQuery());
  const uint32_t question = arbiter.question();
  EXPECT_GT(question, doubt);
  arbiter.Answer(1, After(6), deadline, doubt);
  arbiter.Answer(1, In(7), deadline, question);
  arbiter.Answer(0, In(7), deadline, question);
  arbiter.Answer(2, After(6), deadline, question);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->rank, 2) << arbiter.verdict()->message;
}

// Asks, hears all but `silent`, and waits until the verdict is due.
Verdict JudgeWithout(int silent, const Status& failure, const Call& call, const std::vector<Activity>& doing) {
  Arbiter arbiter(static_cast<int>(doing.size()));
  arbiter.Report(0, failure, call, kStart);
  EXPECT_TRUE(arbiter.TakeQuery());
  for (int rank = 0; rank < static_cast<int>(doing.size()); ++rank) {
    if (rank != silent) arbiter.Answer(rank, doing[rank], kStart + kMillisecond, arbiter.question());
  }
  while (!arbiter.verdict() && arbiter.deadline() != kNoDeadline) arbiter.Tick(arbiter.deadline());
  return arbiter.verdict().value_or(Verdict{});
}

TEST(ArbiterSilentTest, ARankThatHasNotEnteredIsNamedBeforeIt) {
  const Verdict verdict = JudgeWithout(1, Timeout(), Allreduce(7), {In(7), In(7), After(6)});
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_EQ(verdict.message, "rank 2 has not entered allreduce #7 (it last completed #6); rank 1 does not respond");
}

TEST(ArbiterSilentTest, AMismatchIsNamedBeforeIt) {
  Activity other = In(7);
  other.recent[0].count = 100;
  const Verdict verdict = JudgeWithout(1, Timeout(), Allreduce(7), {In(7), In(7), other, In(7)});
  EXPECT_EQ(verdict.code, Code::kMismatch) << verdict.message;
  EXPECT_EQ(verdict.rank, 2) << verdict.message;
}

// The others have finished #6 and wait in #7 for rank 2, which waits in #6 for rank 1.
TEST(ArbiterSilentTest, WhoIsStillInACollectiveMayWaitForIt) {
  const Verdict verdict = JudgeWithout(1, Timeout(), Allreduce(7), {In(7), In(6), In(6), In(7)});
  EXPECT_EQ(verdict.rank, 1) << verdict.message;
}

TEST(ArbiterSilentTest, ItsPauseBreaksNoLink) {
  const Status broken(Code::kPeerLost, "Connection reset by peer", 1, 104);
  const Verdict verdict = JudgeWithout(1, broken, Allreduce(7), {In(7), In(7), In(7)});
  EXPECT_EQ(verdict.message, "the link between rank 0 and rank 1 broke: Connection reset by peer");
}

TEST(ArbiterSilentTest, ItDelaysNoMessageOfOthers) {
  Call message;
  message.sequence = 3;
  message.kind = CollectiveKind::kRecv;
  const Status late(Code::kTimeout, "rank 2 did not send message #3 before its deadline", 2, 0);
  EXPECT_EQ(JudgeWithout(1, late, message, {In(7), In(7), In(7)}).rank, 2);
  const Verdict own = JudgeWithout(2, late, message, {In(7), In(7), In(7)});
  EXPECT_EQ(own.message, "rank 2 does not respond (stopped or unreachable)");
}

TEST(ArbiterSilentTest, OneThatCannotBeReachedIsNamedAlone) {
  Arbiter arbiter(4);
  arbiter.Lost(1);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  arbiter.Answer(0, In(7), kStart);
  arbiter.Answer(3, After(6), kStart);  // Late, and rank 2 is paused.
  for (Nanoseconds at = kStart; at < kStart + 4 * kSecond; at += Arbiter::kSignInterval) arbiter.Tick(at);
  arbiter.GiveUp(1, kStart + 4 * kSecond);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(*arbiter.verdict(), LostPathVerdict({1})) << arbiter.verdict()->message;
}

// Rank 0 was stopped while the answers came: it reads them one after the other, long after they were due.
TEST(ArbiterSilentTest, NobodyIsSilentWhoseAnswerWasReadLate) {
  Arbiter arbiter(3);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  ASSERT_TRUE(arbiter.TakeQuery());
  const Nanoseconds late = kStart + 5 * kSecond;
  arbiter.Tick(late);
  arbiter.Answer(0, In(7), late, arbiter.question());
  arbiter.Answer(1, In(7), late, arbiter.question());
  EXPECT_FALSE(arbiter.verdict());
  arbiter.Answer(2, After(6), late, arbiter.question());
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->rank, 2) << arbiter.verdict()->message;
}

}  // namespace
}  // namespace annulus
