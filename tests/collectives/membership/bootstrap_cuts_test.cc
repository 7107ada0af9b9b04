// One rank's connection to the rendezvous is cut at every piece of what it carries. The job starts all the same, and
// its control plane works; where nothing passes any more, all ranks end in time, and each names the rank that it
// misses.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/membership/bootstrap.h"
#include "tests/collectives/membership/cutting_proxy.h"

namespace annulus {
namespace {

constexpr char kKey[] = "a key that is long enough";
constexpr Nanoseconds kPatience = 30 * kSecond;  // Only a failing test waits that long.
constexpr Nanoseconds kShortPatience = 4 * kSecond;
constexpr int kMostPieces = 12;  // More than a rendezvous has.

struct Outcome {
  Status status;
  BootstrapResult result;
  Nanoseconds took = 0;
};

class Start {
 public:
  Start(int nranks, int cut_rank, CutKind kind, int piece, Nanoseconds patience) : outcomes_(nranks) {
    const auto [listener, port] = ListenAnywhere();
    proxy_ = std::make_unique<CuttingProxy>(port, kind, piece);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < nranks; ++rank) {
      BootstrapConfig config;
      config.rank = rank;
      config.nranks = nranks;
      config.rendezvous = "127.0.0.1:" + std::to_string(rank == cut_rank ? proxy_->port() : port);
      config.job_key = kKey;
      config.listener = rank == 0 ? listener : -1;
      config.blob = "blob of rank " + std::to_string(rank);
      config.deadline = DeadlineAfter(patience);
      threads.emplace_back([this, rank, config, start = Now(), listener = listener] {
        outcomes_[rank].status = Bootstrap(config, &outcomes_[rank].result);
        outcomes_[rank].took = Now() - start;
        if (rank == 0) ::close(listener);  // As when the process goes on: nobody listens there any more.
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  bool was_cut() const { return proxy_->was_cut(); }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

  // All have the same table, and the last rank's abort reaches all.
  void ExpectJob() {
    for (const Outcome& outcome : outcomes_) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      EXPECT_EQ(outcome.result.job_id, outcomes_[0].result.job_id);
      EXPECT_EQ(outcome.result.blobs, outcomes_[0].result.blobs);
    }
    std::vector<std::unique_ptr<Control>> controls(outcomes_.size());
    std::mutex mutex;
    std::condition_variable changed;
    for (size_t rank = 0; rank < outcomes_.size(); ++rank) {
      ControlConfig config;
      config.rank = static_cast<int>(rank);
      config.nranks = static_cast<int>(outcomes_.size());
      config.job_key = kKey;
      config.identity.job = outcomes_[rank].result.job_id;
      config.connections = std::move(outcomes_[rank].result.connections);
      config.on_verdict = [&] {
        const std::lock_guard<std::mutex> lock(mutex);
        changed.notify_all();
      };
      ASSERT_TRUE(Control::Start(std::move(config), &controls[rank]).ok());
    }
    controls.back()->Abort();
    {
      std::unique_lock<std::mutex> lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] {
        return std::all_of(controls.begin(), controls.end(),
                           [](const auto& control) { return control->has_verdict(); });
      }));
    }
    for (const auto& control : controls) {
      if (!control->has_verdict()) continue;
      EXPECT_EQ(control->verdict(), controls.back()->verdict()) << control->verdict().message;
    }
    for (const auto& control : controls) control->Close();
  }

 private:
  std::vector<Outcome> outcomes_;
  std::unique_ptr<CuttingProxy> proxy_;  // The cut rank's control connection leads through it.
};

struct Case {
  const char* name;
  CutKind kind;
};

class BootstrapCutsTest : public testing::TestWithParam<Case> {};

TEST_P(BootstrapCutsTest, TheJobStartsWhereverAConnectionIsReset) {
  int cuts = 0;
  for (int nranks = 2; nranks <= 4; ++nranks) {
    for (int cut_rank = 1; cut_rank < nranks; ++cut_rank) {
      for (int piece = 0; piece < kMostPieces; ++piece) {
        SCOPED_TRACE(testing::Message() << "rank " << cut_rank << " of " << nranks << " cut at piece " << piece);
        Start start(nranks, cut_rank, GetParam().kind, piece, kPatience);
        if (!start.was_cut()) break;
        start.ExpectJob();
        if (HasFailure()) return;
        ++cuts;
      }
    }
  }
  EXPECT_GE(cuts, 6 * 8);
  std::printf("%d cuts\n", cuts);
}

INSTANTIATE_TEST_SUITE_P(Cuts, BootstrapCutsTest,
                         testing::Values(Case{"BothEnds", CutKind::kBothEnds}, Case{"RankFirst", CutKind::kRankFirst},
                                         Case{"JudgeFirst", CutKind::kJudgeFirst}),
                         [](const auto& info) { return info.param.name; });

TEST(BootstrapSilenceTest, AllEndInTimeWhereNothingPassesAnyMore) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Start>> starts(kMostPieces);
  for (int piece = 0; piece < kMostPieces; ++piece) {
    threads.emplace_back(
        [&starts, piece] { starts[piece] = std::make_unique<Start>(3, 2, CutKind::kSilence, piece, kShortPatience); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int piece = 0; piece < kMostPieces; ++piece) {
    SCOPED_TRACE(testing::Message() << "silent from piece " << piece);
    if (!starts[piece]->was_cut()) continue;
    const std::vector<Outcome>& outcomes = starts[piece]->outcomes();
    EXPECT_EQ(outcomes[0].status.code(), outcomes[1].status.code()) << outcomes[1].status.ToString();
    EXPECT_EQ(outcomes[0].status.message(), outcomes[1].status.message());
    for (const Outcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.status.ok() || outcome.status.code() == Code::kTimeout) << outcome.status.ToString();
    }
    if (!outcomes[0].status.ok()) {
      EXPECT_EQ(outcomes[0].status.peer(), 2) << outcomes[0].status.ToString();
    }
    if (!outcomes[2].status.ok()) {
      EXPECT_EQ(outcomes[2].status.peer(), 0) << outcomes[2].status.ToString();
    }
  }
}

}  // namespace
}  // namespace annulus
