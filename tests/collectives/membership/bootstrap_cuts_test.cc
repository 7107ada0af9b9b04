// One or two ranks' connections to the rendezvous are cut, or silent for a while, at every piece of what they carry.
// The job starts all the same, in time, and its control plane works; where nothing passes any more, all ranks end in
// time, and each names the rank that it misses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
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
// Jobs at a time: mostly they wait, those that are paused most of all.
constexpr int kPlayers = 4;
constexpr int kPausedPlayers = 16;
constexpr Nanoseconds kShortestPause = 500 * kMillisecond;
constexpr Nanoseconds kLongestPause = 2 * kSecond;
// What a start and an abort may take beside the pauses. It took some 20 ms; other jobs and tests share the processors.
constexpr Nanoseconds kMostWork = 3 * kSecond;

// A connection to the rendezvous, and the piece at which it is cut.
struct Cut {
  int rank;
  int piece;
  Nanoseconds pause = 0;
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
      proxies_.push_back(std::make_unique<CuttingProxy>(port, how.kind, cut.piece, cut.pause));
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

// Gives each cut a pause, the same in every run.
void DrawPauses(std::vector<Story>* stories) {
  std::mt19937_64 random(1);
  for (Story& story : *stories) {
    for (Cut& cut : story.cuts) {
      constexpr uint64_t kRange = kLongestPause - kShortestPause;
      cut.pause = kShortestPause + static_cast<Nanoseconds>(random() % kRange);
    }
  }
}

struct Played {
  int cut = 0;                 // Stories in which every cut was made.
  Nanoseconds most_extra = 0;  // Longest time of a story, from the start to the abort's end, beside its pauses.
};

// Plays all stories, a few at a time.
Played PlayAll(std::vector<Story> stories, const Case& how) {
  const bool pauses = how.kind == CutKind::kPause;
  if (pauses) DrawPauses(&stories);
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Played played;
  std::vector<std::thread> players;
  for (int i = 0; i < (pauses ? kPausedPlayers : kPlayers); ++i) {
    players.emplace_back([&] {
      for (size_t at = next++; at < stories.size() && !testing::Test::HasFailure(); at = next++) {
        testing::Message name;
        name << stories[at].nranks << " ranks";
        for (const Cut& one : stories[at].cuts) name << ", rank " << one.rank << " cut at piece " << one.piece;
        SCOPED_TRACE(name);
        const Nanoseconds begin = Now();
        Start start(stories[at].nranks, stories[at].cuts, how, kPatience);
        start.ExpectJob();
        Nanoseconds extra = Now() - begin;
        for (const Cut& one : stories[at].cuts) extra -= one.pause;
        const std::lock_guard<std::mutex> lock(mutex);
        played.cut += start.all_cut();
        played.most_extra = std::max(played.most_extra, extra);
      }
    });
  }
  for (std::thread& player : players) player.join();
  return played;
}

class BootstrapCutsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().kind == CutKind::kForgotten && !MayForget()) GTEST_SKIP() << "no connection can be forgotten here";
  }
  void ExpectInTime(const Played& played) {
    std::printf("%d stories with all cuts; the longest took %.3f s beside its pauses\n", played.cut,
                static_cast<double>(played.most_extra) / kSecond);
    if (GetParam().kind == CutKind::kPause) {
      EXPECT_LE(played.most_extra, kMostWork);
    }
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
  const Played played = PlayAll(stories, GetParam());
  EXPECT_GE(played.cut, ranks * kLeastPieces);
  ExpectInTime(played);
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
  const Played played = PlayAll(stories, GetParam());
  EXPECT_GE(played.cut, 2 * kLeastPieces);
  ExpectInTime(played);
}

INSTANTIATE_TEST_SUITE_P(Cuts, BootstrapCutsTest,
                         testing::Values(Case{"BothEnds", CutKind::kBothEnds}, Case{"RankFirst", CutKind::kRankFirst},
                                         Case{"JudgeFirst", CutKind::kJudgeFirst},
                                         Case{"Forgotten", CutKind::kForgotten}, Case{"Paused", CutKind::kPause},
                                         Case{"EncryptedPaused", CutKind::kPause, true},
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
