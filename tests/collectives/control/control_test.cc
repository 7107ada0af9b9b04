// Control over real sockets, all ranks as threads of this process: what each kind of failure ends in, on every rank.
#include "collectives/control/control.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "collectives/control/arbiter.h"
#include "tests/base/descriptor_limit.h"
#include "tests/base/fastest_of.h"
#include "tests/collectives/control/control_pairs.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;  // Only a failing test waits that long.

Call Allreduce(uint64_t sequence, uint64_t count = 200) {
  Call call;
  call.sequence = sequence;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

Status Timeout() { return Status(Code::kTimeout, "the collective did not finish before its deadline"); }

// A rank's Control and whether its verdict was announced.
struct Member {
  std::mutex mutex;
  std::condition_variable changed;
  int announced = 0;
  std::unique_ptr<Control> control;  // Last: its thread uses the rest.

  Verdict Await() {
    std::unique_lock<std::mutex> lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::nanoseconds(kPatience), [this] { return announced > 0; }));
    EXPECT_EQ(announced, 1);
    return control->has_verdict() ? control->verdict() : Verdict{};
  }
};

class ControlTest : public testing::TestWithParam<int> {
 protected:
  ControlTest() : connections_(ConnectRanks(n_)), members_(n_) {}

  // All ranks but those whose connections a test takes for itself.
  void StartAll(int except = -1) {
    for (int rank = 0; rank < n_; ++rank) {
      if (rank == except) continue;
      ControlConfig config;
      config.rank = rank;
      config.nranks = n_;
      config.connections = std::move(connections_[rank]);
      config.on_verdict = [member = &members_[rank]] {
        const std::lock_guard<std::mutex> lock(member->mutex);
        ++member->announced;
        member->changed.notify_all();
      };
      const Status status = Control::Start(std::move(config), &members_[rank].control);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }

  // All ranks once more, with new connections.
  void StartAnew() {
    members_ = std::vector<Member>(n_);
    connections_ = ConnectRanks(n_);
    StartAll();
  }

  Control& control(int rank) { return *members_[rank].control; }

  // Every running rank calls Report at once; returns what each was told.
  std::vector<Verdict> ReportAll(const std::vector<Call>& calls, const std::vector<int>& reporters) {
    std::vector<Verdict> verdicts(reporters.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < reporters.size(); ++i) {
      threads.emplace_back([&, i] { verdicts[i] = control(reporters[i]).Report(Timeout(), calls[reporters[i]]); });
    }
    for (std::thread& thread : threads) thread.join();
    return verdicts;
  }

  // The verdict that all running ranks have, and how long ago `since` was.
  Verdict AwaitAll(const char* story, Nanoseconds since) {
    Verdict first;
    for (Member& member : members_) {
      if (!member.control) continue;
      const Verdict verdict = member.Await();
      if (first.code == Code::kOk) first = verdict;
      EXPECT_EQ(verdict, first) << verdict.message << " / " << first.message;
    }
    std::printf("%s, %d ranks: %.1f ms: %s\n", story, n_, static_cast<double>(Now() - since) / kMillisecond,
                first.message.c_str());
    return first;
  }

  const int n_ = GetParam();
  std::vector<ControlConnections> connections_;
  std::vector<Member> members_;
};

TEST_P(ControlTest, NothingHappensWithoutAFailure) {
  StartAll();
  for (int rank = 0; rank < n_; ++rank) {
    control(rank).Enter(Allreduce(1));
    control(rank).Leave();
  }
  for (int rank = n_ - 1; rank >= 0; --rank) control(rank).Close();
  for (Member& member : members_) EXPECT_FALSE(member.control->has_verdict());
}

TEST_P(ControlTest, AbortReachesEveryRank) {
  for (int culprit = 0; culprit < n_; ++culprit) {
    connections_ = ConnectRanks(n_);
    members_ = std::vector<Member>(n_);
    StartAll();
    const Nanoseconds start = Now();
    control(culprit).Abort();
    EXPECT_TRUE(control(culprit).has_verdict());
    const Verdict verdict = AwaitAll("abort", start);
    EXPECT_EQ(verdict.code, Code::kAborted);
    EXPECT_EQ(verdict.rank, culprit);
    EXPECT_EQ(control(culprit).Report(Timeout(), Allreduce(1)), verdict);
  }
}

TEST_P(ControlTest, ClosedConnectionIsADeathForEveryRank) {
  for (int culprit = 0; culprit < n_; ++culprit) {
    connections_ = ConnectRanks(n_);
    members_ = std::vector<Member>(n_);
    StartAll(culprit);
    const Nanoseconds start = Now();
    EndOrderly(&connections_[culprit]);
    connections_.clear();
    const Verdict verdict = AwaitAll("death", start);
    EXPECT_EQ(verdict.code, Code::kPeerLost);
    EXPECT_EQ(verdict.rank, culprit);
  }
}

TEST_P(ControlTest, MismatchIsToldToEveryRank) {
  StartAll();
  std::vector<Call> calls(n_, Allreduce(7));
  calls.back().count = 100;
  std::vector<int> all;
  for (int rank = 0; rank < n_; ++rank) {
    control(rank).Enter(calls[rank]);
    all.push_back(rank);
  }
  const Nanoseconds start = Now();
  ReportAll(calls, all);
  const Verdict verdict = AwaitAll("mismatch", start);
  EXPECT_EQ(verdict.code, Code::kMismatch);
  EXPECT_EQ(verdict.rank, n_ - 1);
}

TEST_P(ControlTest, LateRankIsNamedByOneReport) {
  StartAll();
  const int late = n_ - 1;
  for (int rank = 0; rank < n_; ++rank) {
    control(rank).Enter(Allreduce(6));
    control(rank).Leave();
    if (rank != late) control(rank).Enter(Allreduce(7));
  }
  const Nanoseconds start = Now();
  control(0).Report(Timeout(), Allreduce(7));
  const Verdict verdict = AwaitAll("late rank", start);
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.message, "rank " + std::to_string(late) + " has not entered allreduce #7 (it last completed #6)");
}

TEST_P(ControlTest, RankThatLeftIsNamed) {
  const int leaver = n_ - 1;
  const Nanoseconds closing = FastestOf(5, Control::kCloseGrace, [&] {
    StartAnew();
    for (int rank = 0; rank < leaver; ++rank) control(rank).Enter(Allreduce(1));
    const Nanoseconds start = Now();
    control(leaver).Close();
    members_[leaver].control.reset();
    const Nanoseconds took = Now() - start;
    control(0).Report(Status(Code::kPeerLost, "Connection reset by peer", leaver, ECONNRESET), Allreduce(1));
    const Verdict verdict = AwaitAll("left", start);
    EXPECT_EQ(verdict.code, Code::kPeerLost);
    EXPECT_EQ(verdict.rank, leaver);
    return took;
  });
  EXPECT_LT(closing, Control::kCloseGrace);
}

TEST_P(ControlTest, JudgeMayLeaveInPeace) {
  const Nanoseconds closing = FastestOf(5, Control::kCloseGrace, [&] {
    StartAnew();
    const Nanoseconds start = Now();
    control(0).Close();
    const Nanoseconds took = Now() - start;
    const Verdict verdict = control(1).Report(Timeout(), Allreduce(1));
    EXPECT_EQ(verdict.code, Code::kPeerLost);
    EXPECT_EQ(verdict.rank, 0);
    EXPECT_NE(verdict.message.find("rank 0 has left"), std::string::npos) << verdict.message;
    for (int rank = 2; rank < n_; ++rank) EXPECT_FALSE(control(rank).has_verdict());
    return took;
  });
  EXPECT_LT(closing, Control::kCloseGrace);
}

TEST_P(ControlTest, SilentRankIsNamedAfterTheAnswerWindow) {
  StartAll(n_ - 1);  // Its connection stays open, and nobody reads it.
  for (int rank = 0; rank < n_ - 1; ++rank) control(rank).Enter(Allreduce(1));
  const Nanoseconds start = Now();
  control(0).Report(Timeout(), Allreduce(1));
  EXPECT_GE(Now() - start, Arbiter::kAnswerWindow);
  const Verdict verdict = AwaitAll("silent rank", start);
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.rank, n_ - 1);
  const Nanoseconds closing = Now();
  control(0).Close();  // Bounded although one rank never closes its end.
  EXPECT_LT(Now() - closing, Control::kCloseGrace + kSecond);
}

TEST_P(ControlTest, SilentJudgeIsNamedByEveryRankAlone) {
  StartAll(0);
  std::vector<int> reporters;
  for (int rank = 1; rank < n_; ++rank) reporters.push_back(rank);
  const Nanoseconds start = Now();
  ReportAll(std::vector<Call>(n_, Allreduce(1)), reporters);
  EXPECT_GE(Now() - start, Control::kVerdictGrace);
  const Verdict verdict = AwaitAll("silent rank 0", start);
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.rank, 0);
  EXPECT_EQ(verdict.message, "rank 0 does not respond (stopped or unreachable)");
}

std::vector<std::string> BrokenMessages() {
  std::string bad_call("\x26\0\0\0\6", 5);
  bad_call += std::string("\1\0\0\0\0\0\0\0\1\1", 10) + std::string(27, '\x7f');
  const std::string giant("\xff\xff\xff\xff\x04", 5), no_type("\0\0\0\0", 5), unknown("\1\0\0\0\x63", 5);
  return {giant, no_type, unknown, std::string("\5\0\0\0\4abcd", 9), bad_call};
}

TEST_P(ControlTest, BrokenMessagesAreTheSendersFault) {
  const int culprit = n_ - 1;
  for (const std::string& bytes : BrokenMessages()) {
    connections_ = ConnectRanks(n_);
    members_ = std::vector<Member>(n_);
    StartAll(culprit);
    const int fd = connections_[culprit].Take(0).fd;
    const Nanoseconds start = Now();
    ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const Verdict verdict = AwaitAll("broken message", start);
    EXPECT_EQ(verdict.code, Code::kProtocol);
    EXPECT_EQ(verdict.rank, culprit);
    ::close(fd);
  }
}

// One verdict: neither does its sender hear of a death, nor do the others where rank 0 sent it.
TEST_P(ControlTest, BrokenMessagesAreToldToEveryRankAndToTheirSender) {
  for (const int culprit : {0, n_ - 1}) {
    for (const std::string& bytes : BrokenMessages()) {
      connections_ = ConnectRanks(n_);
      members_ = std::vector<Member>(n_);
      const int to = n_ - 1 - culprit;
      const int sent_over = connections_[culprit].Take(to).fd;
      const int fd = ::dup(sent_over);
      connections_[culprit].Put(to, sent_over);
      StartAll();
      const Nanoseconds start = Now();
      ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      const Verdict verdict = AwaitAll("broken message of a rank at work", start);
      EXPECT_EQ(verdict.code, Code::kProtocol) << verdict.message;
      EXPECT_EQ(verdict.rank, culprit) << verdict.message;
      for (Member& member : members_) member.control->Close();
      ::close(fd);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ControlTest, testing::Range(2, 6));

// Its control connection is reset, and it cannot open another: neither rank 0 nor the network is at fault.
TEST(ControlDescriptors, ARankThatCannotDialNamesItsOwnLimit) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer of undefined behaviour needs descriptors to look at memory";
#endif
  std::vector<ControlConnections> connections = ConnectRanks(2);
  const int judge = connections[0].Take(1).fd;
  std::promise<void> known;
  ControlConfig config;
  config.rank = 1;
  config.nranks = 2;
  config.connections = std::move(connections[1]);
  config.on_verdict = [&known] { known.set_value(); };
  std::unique_ptr<Control> control;
  ASSERT_TRUE(Control::Start(std::move(config), &control).ok());
  std::optional<DescriptorLimit> none(3);
  const linger reset{1, 0};
  EXPECT_EQ(::setsockopt(judge, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
  ::close(judge);
  const auto heard = known.get_future().wait_for(std::chrono::seconds(60));
  none.reset();
  ASSERT_EQ(heard, std::future_status::ready);
  EXPECT_EQ(control->verdict().code, Code::kSystem);
  EXPECT_EQ(control->verdict().rank, 1);
  EXPECT_EQ(control->verdict().message,
            "rank 1 has no file descriptor left for another control connection to rank 0: Too many open files (EMFILE; "
            "its limit, ulimit -n, is 3)");
}

TEST(ControlAlone, OneRankNeedsNobody) {
  std::unique_ptr<Control> control;
  ControlConfig config;
  ASSERT_TRUE(Control::Start(std::move(config), &control).ok());
  control->Enter(Allreduce(1));
  const Verdict verdict = control->Report(Status(Code::kSystem, "out of luck", Status::kNoRank, 5), Allreduce(1));
  EXPECT_EQ(verdict.code, Code::kSystem);
  EXPECT_EQ(verdict.rank, 0);
  EXPECT_EQ(verdict.os_errno, 5);
  control->Close();
  control->Close();
}

TEST(ActivityRecorder, ReadersNeverSeeHalfACall) {
  ActivityRecorder recorder;
  constexpr uint64_t kCalls = 20000;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load()) {
      for (const Call& call : recorder.Read().recent) {
        ASSERT_EQ(call.count, call.sequence * 3);
        ASSERT_EQ(call.root, static_cast<int32_t>(call.sequence));
        ASSERT_EQ(call.kind, CollectiveKind::kBroadcast);
      }
    }
  });
  for (uint64_t sequence = 1; sequence <= kCalls; ++sequence) {
    Call call;
    call.sequence = sequence;
    call.kind = CollectiveKind::kBroadcast;
    call.root = static_cast<int32_t>(sequence);
    call.count = sequence * 3;
    recorder.Enter(call);
    recorder.Leave();
  }
  stop.store(true);
  reader.join();
  const Activity last = recorder.Read();
  EXPECT_EQ(last.sequence, kCalls);
  EXPECT_FALSE(last.inside);
  EXPECT_EQ(last.recent.size(), static_cast<size_t>(ActivityRecorder::kRemembered));
}

}  // namespace
}  // namespace annulus
