// Control with real processes that are really killed and stopped: every survivor has the same verdict, and soon.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>

#include "collectives/control/control.h"
#include "tests/collectives/control/control_pairs.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPromise = 2 * kSecond;  // From a death to everyone's verdict.
constexpr unsigned kHangLimitSeconds = 30;     // A child that hangs kills itself.

constexpr char kReady = 'r';

void WriteAll(int fd, const std::string& bytes) {
  ANNULUS_CHECK(::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

// What a child tells of its end: when it knew, and the verdict.
struct Report {
  Nanoseconds at = 0;
  Verdict verdict;
};

Report ReadReport(int fd) {
  std::string bytes;
  char buffer[4096];
  ssize_t got;
  while ((got = ::read(fd, buffer, sizeof buffer)) > 0) bytes.append(buffer, got);
  ByteReader in(std::as_bytes(std::span(bytes)));
  Report report;
  report.at = static_cast<Nanoseconds>(in.U64());
  EXPECT_TRUE(ReadVerdict(&in, &report.verdict) && in.done()) << bytes.size() << " bytes";
  return report;
}

// The life of rank `rank`: it enters a collective, and waits for a verdict or, when told that time is up, asks for one.
// Never returns.
[[noreturn]] void Live(int rank, int nranks, ControlConnections connections, int commands, int results) {
  ::alarm(kHangLimitSeconds);
  int wake[2];  // Written by the control thread.
  ANNULUS_CHECK(::pipe(wake) == 0);
  ControlConfig config;
  config.rank = rank;
  config.nranks = nranks;
  config.connections = std::move(connections);
  config.on_verdict = [&wake] { WriteAll(wake[1], "v"); };
  std::unique_ptr<Control> control;
  ANNULUS_CHECK(Control::Start(std::move(config), &control).ok());
  Call call;
  call.sequence = 7;
  call.kind = CollectiveKind::kAllreduce;
  call.count = 1000;
  control->Enter(call);
  WriteAll(results, std::string(1, kReady));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(wake[0], &set);
  FD_SET(commands, &set);
  ANNULUS_CHECK(::select(std::max(wake[0], commands) + 1, &set, nullptr, nullptr, nullptr) > 0);
  Verdict verdict;
  if (control->has_verdict()) {
    verdict = control->verdict();
  } else {
    verdict = control->Report(Status(Code::kTimeout, "the collective did not finish before its deadline"), call);
  }
  ByteWriter out;
  out.U64(static_cast<uint64_t>(Now()));
  WriteVerdict(verdict, &out);
  WriteAll(results, out.bytes());
  ::close(results);
  ::_exit(0);  // At once and without a goodbye: nobody else's verdict may suffer.
}

class ProcessTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  struct Child {
    pid_t pid = -1;
    int commands = -1;
    int results = -1;
  };

  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);  // A rank that knows its verdict no longer reads commands.
    std::vector<ControlConnections> connections = ConnectRanks(n_);
    std::vector<int> inherited;
    for (int rank = 0; rank < n_; ++rank) {
      int commands[2];
      int results[2];
      ANNULUS_CHECK(::pipe(commands) == 0 && ::pipe(results) == 0);
      const pid_t pid = ::fork();
      ANNULUS_CHECK(pid >= 0);
      if (pid == 0) {
        for (const Child& child : children_) {
          ::close(child.commands);
          ::close(child.results);
        }
        ::close(commands[1]);
        ::close(results[0]);
        ControlConnections own = std::move(connections[rank]);
        connections.clear();  // Closes the copies of everyone else's.
        Live(rank, n_, std::move(own), commands[0], results[1]);
      }
      ::close(commands[0]);
      ::close(results[1]);
      children_.push_back({pid, commands[1], results[0]});
    }
    connections.clear();
    for (const Child& child : children_) {
      char ready = 0;
      ASSERT_EQ(::read(child.results, &ready, 1), 1);
      ASSERT_EQ(ready, kReady);
    }
  }

  void TearDown() override {
    for (const Child& child : children_) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      ::close(child.commands);
      ::close(child.results);
    }
  }

  void TimeIsUpFor(int rank) { [[maybe_unused]] const ssize_t sent = ::write(children_[rank].commands, "t", 1); }

  // The verdict that all but the culprit have.
  Verdict SurvivorsVerdict(const char* story, Nanoseconds since) {
    Verdict first;
    Nanoseconds last = since;
    for (int rank = 0; rank < n_; ++rank) {
      if (rank == culprit_) continue;
      const Report report = ReadReport(children_[rank].results);
      if (first.code == Code::kOk) first = report.verdict;
      EXPECT_EQ(report.verdict, first) << report.verdict.message << " / " << first.message;
      last = std::max(last, report.at);
    }
    std::printf("%s rank %d of %d: verdict everywhere after %.1f ms: %s\n", story, culprit_, n_,
                static_cast<double>(last - since) / kMillisecond, first.message.c_str());
    EXPECT_LT(last - since, kPromise);
    EXPECT_EQ(first.rank, culprit_);
    return first;
  }

  const int n_ = std::get<0>(GetParam());
  const int culprit_ = std::get<1>(GetParam());
  std::vector<Child> children_;
};

TEST_P(ProcessTest, KilledRankIsNamedEverywhere) {
  const Nanoseconds start = Now();
  ASSERT_EQ(::kill(children_[culprit_].pid, SIGKILL), 0);
  const Verdict verdict = SurvivorsVerdict("SIGKILL of", start);
  EXPECT_EQ(verdict.code, Code::kPeerLost);
}

TEST_P(ProcessTest, StoppedRankIsNamedEverywhereAndAgreesWhenItGoesOn) {
  ASSERT_EQ(::kill(children_[culprit_].pid, SIGSTOP), 0);
  int state = 0;
  ASSERT_EQ(::waitpid(children_[culprit_].pid, &state, WUNTRACED), children_[culprit_].pid);
  const Nanoseconds start = Now();
  for (int rank = 0; rank < n_; ++rank) {
    if (rank != culprit_) TimeIsUpFor(rank);
  }
  const Verdict verdict = SurvivorsVerdict("SIGSTOP of", start);
  EXPECT_EQ(verdict.code, Code::kTimeout);
  EXPECT_EQ(verdict.message, "rank " + std::to_string(culprit_) + " does not respond (stopped or unreachable)");
  ASSERT_EQ(::kill(children_[culprit_].pid, SIGCONT), 0);
  TimeIsUpFor(culprit_);
  const Verdict own = ReadReport(children_[culprit_].results).verdict;
  EXPECT_EQ(own, verdict) << own.message << " / " << verdict.message;
}

std::vector<std::tuple<int, int>> EveryCulprit() {
  std::vector<std::tuple<int, int>> cases;
  for (int nranks = 2; nranks <= 5; ++nranks) {
    for (int culprit = 0; culprit < nranks; ++culprit) cases.emplace_back(nranks, culprit);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessTest, testing::ValuesIn(EveryCulprit()), [](const auto& info) {
  return "N" + std::to_string(std::get<0>(info.param)) + "Rank" + std::to_string(std::get<1>(info.param));
});

}  // namespace
}  // namespace annulus
