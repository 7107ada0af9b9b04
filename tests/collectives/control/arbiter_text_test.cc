// What verdicts say of parts whose counts differ, and of reports.
#include "collectives/control/arbiter_text.h"

#include <gtest/gtest.h>

#include "collectives/control/arbiter.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;

Call Allgatherv(uint64_t count, int32_t digest) {
  Call call;
  call.sequence = 7;
  call.kind = CollectiveKind::kAllgatherv;
  call.type = DataType::kFloat32;
  call.count = count;
  call.root = digest;
  return call;
}

// The verdict after the report of one rank, where all answer with their calls.
Verdict VerdictOn(const Call (&calls)[kRanks], int reporter, const Status& failure) {
  Arbiter arbiter(kRanks);
  arbiter.Report(reporter, failure, calls[reporter], 0);
  for (int rank = 0; rank < kRanks; ++rank) arbiter.Answer(rank, {7, true, {calls[rank]}}, 0);
  while (!arbiter.verdict()) arbiter.Tick(arbiter.deadline());
  return *arbiter.verdict();
}

TEST(ArbiterTextTest, CountsThatDifferAreThoseOfTheMinorityWhoeverReportsThem) {
  const Status failure(Code::kMismatch, "rank 0 called allgatherv #7 with a part of 4 elements", 0, 0);
  for (int odd = 0; odd < kRanks; ++odd) {
    for (int reporter = 0; reporter < kRanks; ++reporter) {
      Call calls[kRanks] = {Allgatherv(15, 1), Allgatherv(15, 1), Allgatherv(15, 1)};
      const std::string called = RankList({odd}) + " called allgatherv #7 with ";
      calls[odd] = Allgatherv(15, 2);
      Verdict verdict = VerdictOn(calls, reporter, failure);
      EXPECT_EQ(verdict.rank, odd);
      EXPECT_EQ(verdict.message, called + "other counts than the others, though of the same sum");
      calls[odd] = Allgatherv(16, 2);
      verdict = VerdictOn(calls, reporter, failure);
      EXPECT_EQ(verdict.rank, odd);
      EXPECT_EQ(verdict.message, called + "counts for 16 elements, the others with counts for 15 elements");
    }
  }
}

TEST(ArbiterTextTest, TypesAndOperationsSayMoreThanCounts) {
  const Call usual = Allgatherv(15, 1);
  Call other = Allgatherv(15, 2);
  other.type = DataType::kInt32;
  EXPECT_EQ(Difference("rank 1", other, "rank 0", usual),
            "rank 1 called allgatherv #7 with type int32, rank 0 with type float32");
}

TEST(ArbiterTextTest, AReportSaysToAllWhichRankItMeans) {
  const Call calls[kRanks] = {Allgatherv(15, 1), Allgatherv(15, 1), Allgatherv(15, 1)};
  const Status failure(Code::kProtocol, "rank 1 has 5, this rank has 6; see this rank's log", 1, 0);
  const Verdict verdict = VerdictOn(calls, 2, failure);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_EQ(verdict.message, "rank 2 failed in allgatherv #7: rank 1 has 5, rank 2 has 6; see rank 2's log");
}

}  // namespace
}  // namespace annulus
