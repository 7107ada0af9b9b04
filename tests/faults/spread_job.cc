#include "tests/faults/spread_job.h"

#include <gtest/gtest.h>

#include <vector>

namespace annulus {

bool SpreadJob::MakeHosts(std::string* why) {
  hosts_ = Hosts::Create(why);
  return hosts_ != nullptr;
}

void SpreadJob::Start(const RankProcesses::Environment& more, int on_first_host, const std::string& action) {
  RankProcesses::Environment environment = {{"ANNULUS_TRANSPORT", "tcp"},
                                            {"ANNULUS_LOG", "info"},
                                            {"ANNULUS_RENDEZVOUS", Hosts::Address(0) + ":" + std::to_string(kPort)}};
  environment.insert(more.begin(), more.end());
  ranks_ = std::make_unique<RankProcesses>(kRanks, environment);
  for (int rank = 0; rank < kRanks; ++rank) {
    hosts_->Enter(rank < on_first_host ? 0 : 1);
    ranks_->Start(rank, {action});
  }
  ASSERT_TRUE(ranks_->WaitForLine("ready", Now() + kPatience)) << Outputs();
}

void SpreadJob::Work(Nanoseconds time) {
  Child::Wait(
      ranks_->workers(), [] { return false; }, Now() + time);
}

void SpreadJob::ExpectGoodEnd() {
  ranks_->worker(0).CloseInput();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ranks_->worker(rank).ExitStatus(Now() + kPatience), 0) << Outputs();
    EXPECT_EQ(ranks_->worker(rank).CountLines("verdict "), 0) << Outputs();
  }
}

void SpreadJob::ExpectVerdictAbout(int culprit) {
  const std::vector<WorkerVerdict> verdicts = ranks_->Verdicts(culprit, Now() + kPatience);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == culprit) continue;
    EXPECT_TRUE(verdicts[rank].valid) << Outputs();
    EXPECT_EQ(verdicts[rank].rank, culprit) << Outputs();
    EXPECT_EQ(verdicts[rank].message, verdicts[culprit == 0 ? 1 : 0].message) << Outputs();
  }
}

void SpreadJob::ExpectLostPath(int rank) {
  for (const WorkerVerdict& verdict : ranks_->Verdicts(-1, Now() + kPatience)) {
    EXPECT_TRUE(verdict.valid) << Outputs();
    EXPECT_EQ(verdict.rank, rank) << Outputs();
    EXPECT_EQ(verdict.message,
              "rank 0 and rank " + std::to_string(rank) + " lost each other: nothing passes between them")
        << Outputs();
  }
}

std::string SpreadJob::Outputs() const {
  std::string all;
  for (int rank = 0; rank < kRanks; ++rank) all += "rank " + std::to_string(rank) + ":\n" + ranks_->output(rank);
  return all;
}

}  // namespace annulus
