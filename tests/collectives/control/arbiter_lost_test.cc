// The arbiter and ranks whose control connection broke: it waits for them, and judges by where they are now.
#include <gtest/gtest.h>

#include "collectives/control/arbiter.h"

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

TEST(ArbiterLostTest, ARankThatIsGivenUpDoesNotRespond) {
  Arbiter arbiter(3);
  arbiter.Lost(1);
  arbiter.Report(0, Timeout(), Allreduce(7), kStart);
  arbiter.Answer(0, In(7), kStart);
  arbiter.Answer(2, In(7), kStart);
  arbiter.GiveUp(1, kStart + 4 * kSecond);
  ASSERT_TRUE(arbiter.verdict());
  EXPECT_EQ(arbiter.verdict()->message, "rank 1 does not respond (stopped or unreachable)");
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

}  // namespace
}  // namespace annulus
