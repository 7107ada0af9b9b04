// FailureRecord: the first verdict stays, and who is told what.
#include "collectives/comm/failure_record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus {
namespace {

class FakeSurroundings final : public FailureRecord::Surroundings {
 public:
  const Verdict* Told() override { return told ? &*told : nullptr; }
  Call Interrupted() override { return interrupted; }
  void Announce(const Verdict& verdict) override { announced.push_back(verdict); }
  void KeepTrace() override { ++traces; }

  std::optional<Verdict> told;
  Call interrupted;
  std::vector<Verdict> announced;
  int traces = 0;
};

Verdict VerdictOf(Code code, int rank, uint64_t sequence) {
  Verdict verdict;
  verdict.code = code;
  verdict.rank = rank;
  verdict.call.sequence = sequence;
  verdict.message = "rank " + std::to_string(rank);
  return verdict;
}

class FailureRecordTest : public ::testing::Test {
 protected:
  FakeSurroundings around_;
  FailureRecord record_{2, &around_};
};

TEST_F(FailureRecordTest, NothingHasFailedAtFirst) {
  Code code = Code::kMismatch;
  EXPECT_FALSE(record_.CheckEnded(&code));
  EXPECT_EQ(code, Code::kMismatch);
}

TEST_F(FailureRecordTest, TheFirstVerdictStays) {
  record_.End(VerdictOf(Code::kTimeout, 1, 7));
  record_.End(VerdictOf(Code::kPeerLost, 0, 8));
  around_.told = VerdictOf(Code::kAborted, 0, 9);
  Code code = Code::kOk;
  EXPECT_TRUE(record_.CheckEnded(&code));
  EXPECT_EQ(code, Code::kTimeout);
  EXPECT_EQ(record_.verdict().rank, 1);
  EXPECT_EQ(around_.announced.size(), 1u);
}

TEST_F(FailureRecordTest, AVerdictThatTheRanksWereToldIsFoundByTheNextLook) {
  around_.told = VerdictOf(Code::kPeerLost, 1, 3);
  EXPECT_FALSE(record_.ended());
  Code code = Code::kOk;
  EXPECT_TRUE(record_.CheckEnded(&code));
  EXPECT_EQ(record_.verdict().rank, 1);
  EXPECT_EQ(around_.announced.size(), 1u);
  EXPECT_EQ(around_.traces, 1);
}

TEST_F(FailureRecordTest, AVerdictAboutNoCallIsPutDownToTheOneItInterrupted) {
  around_.interrupted.sequence = 12;
  record_.End(VerdictOf(Code::kPeerLost, 1, 0));
  EXPECT_EQ(record_.verdict().call.sequence, 12u);
  EXPECT_EQ(around_.announced.front().call.sequence, 12u);
}

TEST_F(FailureRecordTest, AVerdictAboutACallKeepsIt) {
  around_.interrupted.sequence = 12;
  record_.End(VerdictOf(Code::kMismatch, 1, 5));
  EXPECT_EQ(record_.verdict().call.sequence, 5u);
}

TEST_F(FailureRecordTest, ADestroyedCommunicatorEndsQuietlyAndKeepsAnEarlierVerdict) {
  record_.Close();
  EXPECT_TRUE(record_.ended());
  EXPECT_EQ(record_.verdict().code, Code::kAborted);
  EXPECT_TRUE(around_.announced.empty());
  FailureRecord other{2, &around_};
  other.End(VerdictOf(Code::kTimeout, 1, 7));
  other.Close();
  EXPECT_EQ(other.verdict().code, Code::kTimeout);
}

}  // namespace
}  // namespace annulus
