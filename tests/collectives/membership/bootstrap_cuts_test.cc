// One or two ranks' connections to the rendezvous are cut at every piece of what they carry. The job starts all the
// same, and its control plane works; where nothing passes any more, all ranks end in time, and each names the rank that
// it misses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/membership/bootstrap.h"
#include "tests/collectives/membership/cutting_proxy.h"
#include "tests/soak/rounds.h"
#include "tests/transport/forgotten.h"

namespace annulus {
namespace {

constexpr char kKey[] = "a key that is long enough";
constexpr Nanoseconds kPatience = 30 * kSecond;  // Only a failing test waits that long.
constexpr Nanoseconds kShortPatience = 4 * kSecond;
constexpr int kMostPieces = 16;  // More than a rendezvous has.
constexpr int kLeastPieces = 8;  // Its messages, with those of the handshake.
constexpr int kPlayers = 4;      // Jobs at a time: mostly they wait.

// A connection to the rendezvous, and the piece at which it is cut.
struct Cut {
  int rank;
  int piece;
};

struct Outcome {
  Status status;
  BootstrapResult result;
  std::unique_ptr<Control> control;
};

struct Case {
  const char* name;
  CutKind kind;
  bool encrypts = false;
};

// All ranks of a job, each in a thread of its own: from its start to its control plane.
class Start {
 public:
  Start(int nranks, const std::vector<Cut>& cuts, const Case& how, Nanoseconds patience) : outcomes_(nranks) {
    const auto [listener, port] = ListenAnywhere();
    std::vector<int> ports(nranks, port);
    for (const Cut& cut : cuts) {
      proxies_.push_back(std::make_unique<CuttingProxy>(port, how.kind, cut.piece));
      ports[cut.rank] = proxies_.back()->port();
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < nranks; ++rank) {
      BootstrapConfig config;
      config.rank = rank;
      config.nranks = nranks;
      config.rendezvous = "127.0.0.1:" + std::to_string(ports[rank]);
      config.job_key = kKey;
      config.encrypts = how.encrypts;
      config.listener = rank == 0 ? listener : -1;
      config.blob = "blob of rank " + std::to_string(rank);
      config.deadline = DeadlineAfter(patience);
      threads.emplace_back([this, config, kind = how.kind, listener = listener] {
        Outcome& outcome = outcomes_[config.rank];
        outcome.status = Bootstrap(config, &outcome.result);
        if (config.rank == 0) ::close(listener);  // As when the process goes on: nobody listens there any more.
        if (outcome.status.ok() && kind != CutKind::kSilence) outcome.status = StartControl(config, &outcome);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~Start() {
    for (const Outcome& outcome : outcomes_) {
      if (outcome.control) outcome.control->Close();
    }
  }

  bool all_cut() const {
    return std::ranges::all_of(proxies_, [](const auto& proxy) { return proxy->was_cut(); });
  }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }

  // All have the same table, and the last rank's abort reaches all.
  void ExpectJob() {
    for (const Outcome& outcome : outcomes_) {
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      EXPECT_EQ(outcome.result.job_id, outcomes_[0].result.job_id);
      EXPECT_EQ(outcome.result.blobs, outcomes_[0].result.blobs);
    }
    outcomes_.back().control->Abort();
    {
      std::unique_lock<std::mutex> lock(mutex_);
      EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] {
        return std::ranges::all_of(outcomes_, [](const Outcome& outcome) { return outcome.control->has_verdict(); });
      }));
    }
    for (const Outcome& outcome : outcomes_) {
      if (!outcome.control->has_verdict()) continue;
      EXPECT_EQ(outcome.control->verdict(), outcomes_.back().control->verdict()) << outcome.control->verdict().message;
    }
  }

 private:
  Status StartControl(const BootstrapConfig& bootstrap, Outcome* outcome) {
    ControlConfig config;
    config.rank = bootstrap.rank;
    config.nranks = bootstrap.nranks;
    config.job_key = bootstrap.job_key;
    config.encrypts = bootstrap.encrypts;
    config.identity.job = outcome->result.job_id;
    config.connections = std::move(outcome->result.connections);
    config.on_verdict = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      changed_.notify_all();
    };
    return Control::Start(std::move(config), &outcome->control);
  }

  std::mutex mutex_;
  std::condition_variable changed_;  // With mutex_, when a rank gets its verdict.
  std::vector<Outcome> outcomes_;
  std::vector<std::unique_ptr<CuttingProxy>> proxies_;  // The cut ranks' connections lead through them.
};

struct Story {
  int nranks;
  std::vector<Cut> cuts;
};

// Plays all stories, a few at a time, and returns the number of those in which every cut was made.
int PlayAll(const std::vector<Story>& stories, const Case& how) {
  std::atomic<size_t> next{0};
  std::atomic<int> cut{0};
  std::vector<std::thread> players;
  for (int i = 0; i < kPlayers; ++i) {
    players.emplace_back([&] {
      for (size_t at = next++; at < stories.size() && !testing::Test::HasFailure(); at = next++) {
        testing::Message name;
        name << stories[at].nranks << " ranks";
        for (const Cut& one : stories[at].cuts) name << ", rank " << one.rank << " cut at piece " << one.piece;
        SCOPED_TRACE(name);
        Start start(stories[at].nranks, stories[at].cuts, how, kPatience);
        start.ExpectJob();
        cut += start.all_cut();
      }
    });
  }
  for (std::thread& player : players) player.join();
  return cut;
}

class BootstrapCutsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().kind == CutKind::kForgotten && !MayForget()) GTEST_SKIP() << "no connection can be forgotten here";
  }
};

TEST_P(BootstrapCutsTest, TheJobStartsWhereverAConnectionIsCut) {
  std::vector<Story> stories;
  int ranks = 0;
  for (const int nranks : {2, 3, 4, 5, 6}) {
    if (nranks > static_cast<int>(Rounds(4, 6))) continue;
    for (int rank = 1; rank < nranks; ++rank) {
      ++ranks;
      for (int piece = 0; piece < kMostPieces; ++piece) stories.push_back({nranks, {{rank, piece}}});
    }
  }
  const int cut = PlayAll(stories, GetParam());
  EXPECT_GE(cut, ranks * kLeastPieces);
  std::printf("%d cuts\n", cut);
}

// A rank that has its table comes to the control door while one that has not is still to come to the rendezvous.
TEST_P(BootstrapCutsTest, TheJobStartsWhereverTwoConnectionsAreCut) {
  const int most_apart = static_cast<int>(Rounds(1, kMostPieces));  // In pieces, of the two cuts.
  std::vector<Story> stories;
  for (int first = 0; first < kMostPieces; ++first) {
    for (int second = 0; second < kMostPieces; ++second) {
      if (std::abs(first - second) <= most_apart) stories.push_back({3, {{1, first}, {2, second}}});
    }
  }
  const int cut = PlayAll(stories, GetParam());
  EXPECT_GE(cut, kLeastPieces);
  std::printf("%d pairs of cuts\n", cut);
}

INSTANTIATE_TEST_SUITE_P(Cuts, BootstrapCutsTest,
                         testing::Values(Case{"BothEnds", CutKind::kBothEnds}, Case{"RankFirst", CutKind::kRankFirst},
                                         Case{"JudgeFirst", CutKind::kJudgeFirst},
                                         Case{"Forgotten", CutKind::kForgotten},
                                         Case{"EncryptedBothEnds", CutKind::kBothEnds, true},
                                         Case{"EncryptedRankFirst", CutKind::kRankFirst, true}),
                         [](const auto& info) { return info.param.name; });

TEST(BootstrapSilenceTest, AllEndInTimeWhereNothingPassesAnyMore) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Start>> starts(kMostPieces);
  for (int piece = 0; piece < kMostPieces; ++piece) {
    threads.emplace_back([&starts, piece] {
      starts[piece] =
          std::make_unique<Start>(3, std::vector<Cut>{{2, piece}}, Case{"", CutKind::kSilence}, kShortPatience);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int piece = 0; piece < kMostPieces; ++piece) {
    SCOPED_TRACE(testing::Message() << "silent from piece " << piece);
    if (!starts[piece]->all_cut()) continue;
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
