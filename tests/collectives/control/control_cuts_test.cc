// One control connection is reset at every message that it carries, in every kind of story: all ranks, the one that was
// cut off included, have the verdict of the story without a cut. Also where connections are encrypted.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/control/control_wire.h"
#include "tests/collectives/control/control_pairs.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;  // Only a failing test waits that long.

// Passes the messages of a control connection on, and resets it instead of passing on message `cut`, counted from 0
// over both directions; or, with `after`, once it has passed it on. Of a sealed connection, records in place of
// messages.
class Wire {
 public:
  // Rank 0's end is reset first, the other `lag` later.
  Wire(int cut, bool after, Nanoseconds lag, bool seals) : cut_(cut), after_(after), lag_(lag), seals_(seals) {
    int judge = -1;
    int member = -1;
    std::tie(judge, ends_[0].fd) = ConnectPair();
    std::tie(ends_[1].fd, member) = ConnectPair();
    judge_ = ControlConnections::EndsOf(judge);
    member_ = ControlConnections::EndsOf(member);
    if (seals) std::tie(judge_, member_) = SealEnds(judge, member, [this] { Carry(); });
    thread_ = std::thread([this] { Run(); });
  }
  ~Wire() {
    stop_.store(true);
    thread_.join();
  }

  ControlConnection TakeJudge() { return std::move(judge_); }
  ControlConnection TakeMember() { return std::move(member_); }
  bool was_cut() const { return was_cut_.load(); }

 private:
  struct End {
    int fd = -1;
    std::string unsent;  // Bytes read here that are no whole message yet.
    bool ended = false;
  };

  // Passes on what has come, before messages do.
  void Carry() {
    for (int side = 0; side < 2; ++side) {
      char buffer[4096];
      const ssize_t got = ::recv(ends_[side].fd, buffer, sizeof buffer, MSG_DONTWAIT);
      if (got <= 0) continue;
      EXPECT_EQ(::send(ends_[1 - side].fd, buffer, static_cast<size_t>(got), 0), got);
    }
  }

  // Bytes of the first message, or record, if that many are known; else 0.
  size_t FirstOf(const std::string& unsent) const {
    constexpr size_t kRecordHeaderBytes = 5;  // TLS has the type, the version, and the length in two bytes.
    if (seals_) {
      if (unsent.size() < kRecordHeaderBytes) return 0;
      return kRecordHeaderBytes + static_cast<uint8_t>(unsent[3]) * size_t{256} + static_cast<uint8_t>(unsent[4]);
    }
    if (unsent.size() < kMessageHeaderBytes) return 0;
    uint32_t length = 0;
    std::memcpy(&length, unsent.data(), sizeof length);
    return sizeof length + length;
  }

  void Run() {
    while (!stop_.load() && !was_cut_.load()) {
      pollfd polled[2] = {{ends_[0].ended ? -1 : ends_[0].fd, POLLIN, 0},
                          {ends_[1].ended ? -1 : ends_[1].fd, POLLIN, 0}};
      if (::poll(polled, 2, 5) <= 0) continue;
      for (int side = 0; side < 2; ++side) {
        if (polled[side].revents != 0 && !was_cut_.load()) PassOn(&ends_[side], ends_[1 - side].fd);
      }
    }
    for (const End& end : ends_) {
      if (end.fd >= 0 && !was_cut_.load()) ::close(end.fd);
    }
  }

  void PassOn(End* from, int to) {
    char buffer[4096];
    const ssize_t got = ::read(from->fd, buffer, sizeof buffer);
    if (got <= 0) {
      from->ended = true;
      ::shutdown(to, SHUT_WR);
      return;
    }
    from->unsent.append(buffer, got);
    for (;;) {
      const size_t bytes = FirstOf(from->unsent);
      if (bytes == 0 || from->unsent.size() < bytes) return;
      const int message = messages_++;
      if (message == cut_ && !after_) return Cut();
      if (::send(to, from->unsent.data(), bytes, MSG_NOSIGNAL) < 0) return;
      from->unsent.erase(0, bytes);
      if (message == cut_) return Cut();
    }
  }

  void Cut() {
    was_cut_.store(true);
    for (const End& end : ends_) {
      pollfd until_then = {end.fd, 0, 0};  // Until the rank ends it itself, which it has no reason to.
      if (&end == &ends_[1]) ::poll(&until_then, 1, static_cast<int>(lag_ / kMillisecond));
      const linger reset{1, 0};
      ::setsockopt(end.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      ::close(end.fd);
    }
  }

  const int cut_;
  const bool after_;
  const Nanoseconds lag_;
  const bool seals_;
  ControlConnection judge_, member_;
  End ends_[2];
  int messages_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<bool> was_cut_{false};
  std::thread thread_;
};

struct Ranks {
  int number = 0;
  bool seals = false;
};

// The ranks of a job, one of whose control connections is a Wire.
class Job {
 public:
  Job(const Ranks& ranks, int cut_rank, int cut, bool after, int absent, Nanoseconds lag = 0)
      : connections_(ConnectRanks(ranks.number, ranks.seals)),
        wire_(cut, after, lag, ranks.seals),
        controls_(ranks.number) {
    const int nranks = ranks.number;
    connections_[0].Put(cut_rank, wire_.TakeJudge());
    connections_[cut_rank].Put(0, wire_.TakeMember());
    for (int rank = 0; rank < nranks; ++rank) {
      if (rank == absent) continue;
      ControlConfig config;
      config.rank = rank;
      config.nranks = nranks;
      config.job_key = "a key";
      config.encrypts = ranks.seals;
      config.identity.job = 7;
      config.connections = std::move(connections_[rank]);
      config.on_verdict = [this] {
        const std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
      };
      EXPECT_TRUE(Control::Start(std::move(config), &controls_[rank]).ok());
    }
  }
  ~Job() {
    for (auto& control : controls_) {
      if (control != nullptr) control->Close();
    }
  }

  int nranks() const { return static_cast<int>(controls_.size()); }
  Control* control(int rank) { return controls_[rank].get(); }
  bool was_cut() const { return wire_.was_cut(); }
  // An absent rank's process ends. It had read everything, so its connection ends in an orderly way.
  void EndProcess(int rank) { EndOrderly(&connections_[rank]); }

  // Whether some rank gets a verdict in that time.
  bool AnyVerdictWithin(Nanoseconds duration) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto any_knows = [this] {
      return std::any_of(controls_.begin(), controls_.end(),
                         [](const auto& control) { return control->has_verdict(); });
    };
    return changed_.wait_for(lock, std::chrono::nanoseconds(duration), any_knows);
  }

  // The verdict that all ranks have.
  Verdict Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto all_know = [this] {
      for (const auto& control : controls_) {
        if (control != nullptr && !control->has_verdict()) return false;
      }
      return true;
    };
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), all_know)) << "no verdict";
    Verdict first;
    for (const auto& control : controls_) {
      if (control == nullptr || !control->has_verdict()) continue;
      if (first.code == Code::kOk) first = control->verdict();
      EXPECT_EQ(control->verdict(), first) << control->verdict().message << " / " << first.message;
    }
    return first;
  }

 private:
  std::vector<ControlConnections> connections_;
  Wire wire_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Control>> controls_;  // By rank. Last: their threads use the rest.
};

Call Allreduce(uint64_t count) {
  Call call;
  call.sequence = 7;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

Status Timeout() { return Status(Code::kTimeout, "the collective did not finish before its deadline"); }

struct Story {
  const char* name;
  int absent;  // Rank that is not there, from the end: 1 is the last; 0: none.
  std::function<void(Job*)> tell;
  Code code;
  int culprit;  // From the end, as above.
};

// Everyone enters the collective, then reports that it did not finish; the last rank has another count.
void AllReport(Job* job, uint64_t odd_count) {
  const auto call_of = [&](int rank) { return Allreduce(rank == job->nranks() - 1 ? odd_count : 200); };
  for (int rank = 0; rank < job->nranks(); ++rank) job->control(rank)->Enter(call_of(rank));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job->nranks(); ++rank) {
    threads.emplace_back([&, rank] { job->control(rank)->Report(Timeout(), call_of(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

const Story kStories[] = {
    {"a mismatch", 0, [](Job* job) { AllReport(job, 100); }, Code::kMismatch, 1},
    {"a late rank", 0,
     [](Job* job) {
       for (int rank = 0; rank + 1 < job->nranks(); ++rank) job->control(rank)->Enter(Allreduce(200));
       job->control(0)->Report(Timeout(), Allreduce(200));
     },
     Code::kTimeout, 1},
    {"an abort", 0, [](Job* job) { job->control(job->nranks() - 1)->Abort(); }, Code::kAborted, 1},
    {"an abort by rank 0", 0, [](Job* job) { job->control(0)->Abort(); }, Code::kAborted, 0},
    {"a failed rank", 0,
     [](Job* job) {
       const int last = job->nranks() - 1;
       for (int rank = 0; rank < job->nranks(); ++rank) job->control(rank)->Enter(Allreduce(200));
       job->control(last)->Report(Status(Code::kSystem, "out of luck", Status::kNoRank, 5), Allreduce(200));
     },
     Code::kSystem, 1},
    {"a death", 1, [](Job* job) { job->EndProcess(job->nranks() - 1); }, Code::kPeerLost, 1},
};

class ControlCutsTest : public testing::TestWithParam<Ranks> {};

TEST_P(ControlCutsTest, NoVerdictDependsOnAConnectionThatIsReset) {
  const int n = GetParam().number;
  int runs = 0;
  for (const Story& story : kStories) {
    const int absent = story.absent > 0 ? n - story.absent : -1;
    const int culprit = story.culprit > 0 ? n - story.culprit : 0;
    for (int cut_rank = 1; cut_rank < n; ++cut_rank) {
      if (cut_rank == absent) continue;
      for (const bool after : {false, true}) {
        for (int cut = 0;; ++cut) {
          SCOPED_TRACE(testing::Message() << story.name << ", " << n << " ranks, link of rank " << cut_rank << " cut "
                                          << (after ? "after" : "at") << " message " << cut);
          Job job(GetParam(), cut_rank, cut, after, absent);
          story.tell(&job);
          const Verdict verdict = job.Await();
          EXPECT_EQ(verdict.code, story.code) << verdict.message;
          EXPECT_EQ(verdict.rank, culprit) << verdict.message;
          ++runs;
          if (HasFailure()) return;
          if (!job.was_cut()) break;
        }
      }
    }
  }
  std::printf("%d ranks%s: %d runs\n", n, GetParam().seals ? ", encrypted" : "", runs);
}

// Cuts a connection after its first message, a question about nothing.
void CutNow(Job* job) {
  job->control(0)->Doubt();
  const Deadline deadline = DeadlineAfter(kPatience);
  while (!job->was_cut() && Now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(job->was_cut());
}

TEST_P(ControlCutsTest, NobodyIsBlamedForACutAlone) {
  const int n = GetParam().number;
  for (int cut_rank = 1; cut_rank < n; ++cut_rank) {
    Job job(GetParam(), cut_rank, 0, true, -1);
    CutNow(&job);
    // What comes later goes over the new connection.
    job.control(0)->Doubt();
    job.control(cut_rank)->Abort();
    const Verdict verdict = job.Await();
    EXPECT_EQ(verdict.code, Code::kAborted) << verdict.message;
    EXPECT_EQ(verdict.rank, cut_rank);
  }
}

// As when something between the two has forgotten the connection: who sends first is reset, the other learns it from
// its next probe.
TEST_P(ControlCutsTest, ARankThatNoticesItLaterIsNotDead) {
  Job job(GetParam(), 1, 0, true, -1, kSecond);
  CutNow(&job);
  job.control(0)->Enter(Allreduce(200));
  job.control(0)->Report(Timeout(), Allreduce(200));
  const Verdict verdict = job.Await();
  EXPECT_EQ(verdict.code, Code::kTimeout) << verdict.message;
  EXPECT_NE(verdict.message.find("not entered"), std::string::npos) << verdict.message;
}

TEST_P(ControlCutsTest, ARankThatIsAwayHearsTheVerdictOfAJudgeThatLeavesAtOnce) {
  Job job(GetParam(), 1, 0, true, -1, 200 * kMillisecond);
  CutNow(&job);
  job.control(0)->Abort();
  job.control(0)->Close();
  const Verdict verdict = job.Await();
  EXPECT_EQ(verdict.code, Code::kAborted) << verdict.message;
  EXPECT_EQ(verdict.rank, 0);
}

TEST_P(ControlCutsTest, LeavingIsNoFailureWhereverItIsCut) {
  const int n = GetParam().number;
  for (const bool judge_first : {false, true}) {
    for (int cut = 0; cut < 5; ++cut) {
      SCOPED_TRACE(testing::Message() << n << " ranks, cut at message " << cut
                                      << (judge_first ? ", rank 0 first" : ""));
      Job job(GetParam(), 1, cut, false, -1);
      for (int i = 0; i < n; ++i) {
        const int rank = judge_first ? i : n - 1 - i;
        // Long enough for a lost goodbye to show.
        if (rank == 0 && i == 1 && n == 2 && cut < 2) {
          EXPECT_FALSE(job.AnyVerdictWithin(2 * kSecond));
        }
        const Nanoseconds start = Now();
        job.control(rank)->Close();
        EXPECT_LT(Now() - start, Control::kCloseGrace + 4 * kSecond);
      }
      for (int rank = 0; rank < n; ++rank) EXPECT_FALSE(job.control(rank)->has_verdict());
      EXPECT_TRUE(cut > 0 || job.was_cut());
    }
  }
}

// More ranks than three do no other things with memory and threads.
std::vector<Ranks> AllRanks() {
  std::vector<Ranks> all = {{2}, {3}, {2, true}, {3, true}, {4}, {5}};
  if (kSanitized) all.resize(4);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlCutsTest, testing::ValuesIn(AllRanks()), [](const auto& info) {
  return (info.param.seals ? "Encrypted" : "Plain") + std::to_string(info.param.number);
});

}  // namespace
}  // namespace annulus
