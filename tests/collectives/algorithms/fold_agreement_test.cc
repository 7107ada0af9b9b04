// Ranks that agree on folds in shared memory, however far each submits ahead of what it has driven: every rank takes
// the same calls for folds.
#include "collectives/algorithms/shared_fold/fold_agreement.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <vector>

namespace annulus {
namespace {

using State = FoldAgreement::State;
using Task = FoldAgreement::Task;

constexpr uint64_t kCalls = 120;

// One rank: it submits candidates, and drives them in the same order as all others.
struct Rank {
  explicit Rank(bool can) : agreement(can) {}

  bool MaySubmit() { return folds.size() < kCalls && agreement.Await(folds.size() + 1, 0).ok(); }
  void Submit(bool fails) {
    folds.push_back(agreement.IsFold(folds.size() + 1));
    const Task task = agreement.NextTask();
    SharedPlace place;
    place.begin = 1;
    if (task != Task::kNone) agreement.Done(task, fails ? Status::Invalid("it cannot") : Status(), place);
  }

  FoldAgreement agreement;
  std::vector<bool> folds;  // For each call that it has submitted.
};

class Ranks {
 public:
  Ranks(int nranks, int cannot) {
    for (int rank = 0; rank < nranks; ++rank) ranks_.push_back(std::make_unique<Rank>(rank != cannot));
  }

  // In any order. `fails`: that rank fails what it has to do.
  void RunAll(std::mt19937_64* random, int fails) {
    uint64_t driven = 0;
    while (driven < kCalls) {
      const size_t chosen = (*random)() % (ranks_.size() + 1);
      if (chosen < ranks_.size()) {
        if (ranks_[chosen]->MaySubmit()) ranks_[chosen]->Submit(static_cast<int>(chosen) == fails);
        continue;
      }
      // All drive the next call when all have submitted it.
      bool all = true;
      for (const auto& rank : ranks_) all &= rank->folds.size() > driven;
      if (all) Drive(++driven);
    }
  }
  const std::vector<bool>& folds(size_t rank) const { return ranks_[rank]->folds; }

 private:
  void Drive(uint64_t number) {
    if (ranks_.front()->folds[number - 1]) return;
    std::vector<FoldAgreement::Word> words;
    for (const auto& rank : ranks_) words.push_back(rank->agreement.Say(number));
    for (const auto& rank : ranks_) rank->agreement.Hear(number, words);
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST(FoldAgreementTest, AllRanksTakeTheSameCallsForFolds) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const int nranks = 2 + static_cast<int>(seed % 4);
    Ranks ranks(nranks, -1);
    ranks.RunAll(&random, -1);
    for (int rank = 0; rank < nranks; ++rank)
      ASSERT_EQ(ranks.folds(static_cast<size_t>(rank)), ranks.folds(0)) << "seed " << seed;
    EXPECT_FALSE(ranks.folds(0).front());
    EXPECT_TRUE(ranks.folds(0)[3 * FoldAgreement::kMostAhead]) << "seed " << seed;
    EXPECT_TRUE(ranks.folds(0).back());
  }
}

TEST(FoldAgreementTest, OneRankThatCannotLeavesNone) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    Ranks ranks(3, seed % 2 == 0 ? static_cast<int>(seed % 3) : -1);
    ranks.RunAll(&random, seed % 2 == 1 ? static_cast<int>(seed % 3) : -1);
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.folds(rank), std::vector<bool>(kCalls)) << "seed " << seed;
  }
}

TEST(FoldAgreementTest, ARankDoesNotSubmitFartherAheadBeforeItKnows) {
  FoldAgreement agreement(true);
  EXPECT_TRUE(agreement.Await(FoldAgreement::kMostAhead, 0).ok());
  EXPECT_EQ(agreement.Await(FoldAgreement::kMostAhead + 1, 0).code(), Code::kTimeout);
  agreement.Hear(1, std::vector{agreement.Say(1)});
  EXPECT_TRUE(agreement.Await(FoldAgreement::kMostAhead + 1, 0).ok());
  EXPECT_EQ(agreement.Await(FoldAgreement::kMostAhead + 2, 0).code(), Code::kTimeout);
  agreement.Never();
  EXPECT_TRUE(agreement.Await(FoldAgreement::kMostAhead + 2, 0).ok());
  EXPECT_FALSE(agreement.IsFold(FoldAgreement::kMostAhead + 2));
  agreement.End();
  EXPECT_EQ(agreement.Await(1, kNoDeadline).code(), Code::kAborted);
}

// In the way is what has been freed and another process has still open.
TEST(FoldAgreementTest, AfterAFailureOfTheDriverARankTriesAgain) {
  const Status failed(Code::kSystem, "something is in the way");
  const Status not_asked(Code::kUnsupported, "the driver is not asked each time");
  for (const bool passes : {true, false}) {
    FoldAgreement agreement(true);
    agreement.Done(Task::kShare, Status());
    agreement.Hear(1, std::vector{agreement.Say(1)});
    for (int i = 0; i + 1 < FoldAgreement::kMostTries; ++i) {
      ASSERT_EQ(agreement.NextTask(), Task::kReach) << i;
      agreement.Done(Task::kReach, i % 8 == 0 ? failed : not_asked);
      ASSERT_EQ(agreement.Say(2).state, State::kHasMemory) << i;
    }
    agreement.Done(Task::kReach, passes ? Status() : failed);
    EXPECT_EQ(agreement.Say(2).state, passes ? State::kReachesAll : State::kCannot);
  }
  FoldAgreement other(true);
  other.Done(Task::kShare, Status());
  other.Hear(1, std::vector{other.Say(1)});
  other.Done(Task::kReach, not_asked);
  EXPECT_EQ(other.Say(2).state, State::kCannot) << "nothing has failed that may pass";
}

// As a call of which some rank says that it is in no stream.
TEST(FoldAgreementTest, RanksWithOtherNumbersAgreeOnNothing) {
  FoldAgreement agreement(true);
  for (uint64_t number = 1; number <= 30; ++number) {
    const FoldAgreement::Word other{{}, number % 2 == 0 ? 0 : number + 1, 0, State::kReachesAll};
    agreement.Hear(number, std::vector{FoldAgreement::Word{{}, number, 0, State::kReachesAll}, other});
    EXPECT_FALSE(agreement.IsFold(number + FoldAgreement::kMostAhead + 1));
  }
}

}  // namespace
}  // namespace annulus
