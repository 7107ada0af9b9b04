// Tuner: what it asks of the communicator that it tunes, one that does nothing.
#include "collectives/comm/tuner.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "transport/shm/shm.h"

namespace annulus {
namespace {

class TunerTest : public ::testing::Test {
 protected:
  TuningJob Job(int rank, int nranks) {
    TuningJob job;
    job.rank = rank;
    job.topology = Topology(nranks, std::vector<int>(nranks));
    job.topology.near = &kShmTransport;
    job.run = [this](const CallArguments& arguments) {
      ++calls_;
      return ++kinds_[arguments.kind] > most_ ? Status(Code::kPeerLost, "rank 1 is gone") : Status();
    };
    job.choose = [this](const AlgorithmChoice& choice) { is_measured_.push_back(choice.measured().has_value()); };
    return job;
  }
  Status Tune(TuningJob job) {
    const AlgorithmChoice nominal(job.plan, job.topology);
    return Tuner(std::move(job), nominal).Tune("", &source_);
  }

  int calls_ = 0;
  int most_ = 1'000'000;  // Calls of each kind that go well.
  std::map<CollectiveKind, int> kinds_;
  std::vector<bool> is_measured_;
  std::string source_ = "nominal costs";
};

TEST_F(TunerTest, OneRankHasNothingToMeasure) {
  EXPECT_TRUE(Tune(Job(0, 1)).ok());
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(source_, "nominal costs");
}

TEST_F(TunerTest, ItMeasuresWithWhatWasChosenBeforeAndChoosesByTheMeasuresLast) {
  EXPECT_TRUE(Tune(Job(0, 4)).ok());
  ASSERT_GE(is_measured_.size(), 3u);
  EXPECT_TRUE(is_measured_.back());
  is_measured_.pop_back();
  for (const bool measured : is_measured_) EXPECT_FALSE(measured);
  EXPECT_GT(kinds_[CollectiveKind::kAllreduce], 0);
  EXPECT_GT(kinds_[CollectiveKind::kBroadcast], 0);
  EXPECT_EQ(calls_, kinds_[CollectiveKind::kAllreduce] + kinds_[CollectiveKind::kBroadcast]);
  EXPECT_NE(source_, "nominal costs");
}

TEST_F(TunerTest, ACallThatFailsEndsItWithItsWords) {
  most_ = 3;
  const Status status = Tune(Job(0, 4));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(), "rank 1 is gone");
}

TEST_F(TunerTest, ItIsAskedBeforeEachCallWhetherToGiveUp) {
  TuningJob job = Job(0, 4);
  int questions = 0;
  job.give_up = [&] { return ++questions < 5 ? Status() : Status(Code::kAborted, "no more"); };
  EXPECT_EQ(Tune(std::move(job)).code(), Code::kAborted);
  EXPECT_EQ(calls_, 4);
}

}  // namespace
}  // namespace annulus
