// Strangers at every door of a real job, while it waits, while it starts and while it runs: it starts and its sums are
// right, and the log tells of each kind of stranger once.
#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "tests/faults/rank_processes.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;  // Only a bug takes that long, on whatever machine.
constexpr int kConnectTimeoutMs = 60000;

std::string PathOf(const char* variable) {
  const char* path = std::getenv(variable);
  ANNULUS_CHECK(path != nullptr);
  return path;
}

// A job, and strangers that a test sends to its ranks.
class Siege {
 public:
  Siege(int nranks, const std::string& transport)
      : ranks_(nranks,
               {{"ANNULUS_TRANSPORT", transport}, {"ANNULUS_CONNECT_TIMEOUT_MS", std::to_string(kConnectTimeoutMs)}}) {}

  RankProcesses& ranks() { return ranks_; }

  void Start(int rank, const RankProcesses::Environment& environment = {}) {
    ranks_.Start(rank, {"until"}, environment);
  }

  // A stranger of this kind (tests/faults/stray.cc) for all ranks that run now. It lives as long as the siege.
  Child* Send(const std::string& kind) {
    std::vector<std::string> words = {kind};
    if (kind != "list") words.push_back(std::to_string(ranks_.port()));
    for (const Child* worker : ranks_.workers()) words.push_back(std::to_string(worker->pid()));
    strays_.push_back(std::make_unique<Child>(PathOf("FAULT_STRAY"), words, ranks_.EnvironmentOf(1)));
    return strays_.back().get();
  }

  // Waits until the stranger has said `word`, and returns what followed.
  std::string Hear(Child* stray, const std::string& word) {
    const bool heard = Child::Wait(
        {stray}, [&] { return !stray->After(word).empty(); }, Now() + kPatience);
    EXPECT_TRUE(heard) << "no \"" << word << "\" in: " << stray->output();
    return stray->After(word);
  }
  int HearNumber(Child* stray, const std::string& word) { return std::atoi(Hear(stray, word).c_str()); }

  // Waits until the log of rank 0 tells of a connection that was dropped for this reason.
  void AwaitLogged(const std::string& reason) {
    Child* host = &ranks_.worker(0);
    EXPECT_TRUE(Child::Wait(
        {host}, [&] { return Dropped(0, reason) > 0; }, Now() + kPatience))
        << "not logged: " << reason << "\n"
        << host->output();
  }
  int Dropped(int rank, const std::string& reason) {
    return ranks_.worker(rank).CountLines("dropped a connection", "(" + reason + ")");
  }

  // The job works, listens only for ranks whose control connection breaks, and ends in order.
  void ExpectWorkAndEnd(int nranks) {
    ASSERT_TRUE(ranks_.WaitForLine("ready", Now() + kPatience)) << Outputs();
    EXPECT_EQ(HearNumber(Send("list"), "listening"), 1);
    for (Child* worker : ranks_.workers()) worker->CloseInput();
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_EQ(ranks_.worker(rank).ExitStatus(Now() + kPatience), 0) << ranks_.output(rank);
      EXPECT_NE(ranks_.worker(rank).After("ended"), "") << ranks_.output(rank);
      EXPECT_EQ(ranks_.worker(rank).After("verdict"), "");
    }
  }

  std::string Outputs() {
    std::string text;
    for (const Child* worker : ranks_.workers()) text += worker->output() + "---\n";
    return text;
  }

 private:
  RankProcesses ranks_;
  std::vector<std::unique_ptr<Child>> strays_;
};

struct JobCase {
  int nranks;
  const char* transport;
};

void PrintTo(const JobCase& c, std::ostream* out) { *out << c.transport << ", " << c.nranks << " ranks"; }

class StraysTest : public testing::TestWithParam<JobCase> {};

TEST_P(StraysTest, JobStartsAndWorksAmongThem) {
  const int n = GetParam().nranks;
  Siege siege(n, GetParam().transport);
  siege.Start(0);
  // Rank 0 listens for ranks and, already, for links: two doors.
  for (const char* kind : {"close", "silent", "drip", "garbage", "giant", "hello", "half"}) {
    EXPECT_EQ(siege.HearNumber(siege.Send(kind), "attacked"), 2) << kind;
  }
  siege.AwaitLogged("left early");
  siege.AwaitLogged("no valid hello");
  siege.AwaitLogged("too slow");
  EXPECT_EQ(siege.HearNumber(siege.Send("crowd"), "attacked"), 2);
  siege.AwaitLogged("too many unproven");

  // A rank of another job that came to the wrong address.
  RankProcesses::Environment other_key = siege.ranks().EnvironmentOf(1);
  other_key["ANNULUS_JOB_KEY"] = "the key of another job altogether";
  Child impostor(PathOf("FAULT_WORKER"), {"loop"}, other_key);
  EXPECT_EQ(impostor.ExitStatus(Now() + kPatience), 1) << impostor.output();
  EXPECT_EQ(impostor.After("create").substr(0, 2), std::to_string(ANNULUS_AUTH_FAILED) + " ") << impostor.output();
  siege.AwaitLogged("left without proof");  // It was shown the proof of rank 0, and did not believe that.

  for (int rank = 1; rank < n; ++rank) siege.Start(rank);
  Child* storm = siege.Send("storm");
  siege.ExpectWorkAndEnd(n);
  storm->CloseInput();
  EXPECT_NE(siege.Hear(storm, "attacked"), "");

  for (const char* reason : {"left early", "no valid hello", "too slow", "too many unproven", "left without proof"}) {
    for (int rank = 0; rank < n; ++rank) {  // Once for each door.
      EXPECT_LE(siege.Dropped(rank, reason), rank == 0 ? 3 : 1) << reason << "\n" << siege.ranks().output(rank);
    }
  }
  EXPECT_EQ(siege.ranks().worker(0).CountLines("annulus[0] warning: dropped ", "connections while connecting"), 2)
      << siege.ranks().output(0);
}

std::vector<JobCase> Cases() { return {{2, "shm"}, {2, "tcp"}, {4, "shm"}, {4, "tcp"}}; }

INSTANTIATE_TEST_SUITE_P(Jobs, StraysTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.transport + std::to_string(info.param.nranks); });

// With one key and one port, as under torchrun, a worker that an earlier start has left over.
TEST(StaleRankTest, IsRefusedByNameAndTheTrueOneIsSeated) {
  Siege siege(2, "auto");
  siege.Start(0, {{"ANNULUS_RUN_ID", "B"}});
  RankProcesses::Environment stale = siege.ranks().EnvironmentOf(1);
  stale["ANNULUS_RUN_ID"] = "A";
  Child left(PathOf("FAULT_WORKER"), {"loop"}, stale);
  EXPECT_EQ(left.ExitStatus(Now() + kPatience), 1) << left.output();
  EXPECT_EQ(left.After("create").substr(0, 2), std::to_string(ANNULUS_MISMATCH) + " ") << left.output();
  EXPECT_NE(left.output().find("this rank belongs to run A restart 0, rank 0 (unproven) to run B restart 0"),
            std::string::npos)
      << left.output();
  siege.AwaitLogged("another run");
  siege.Start(1, {{"ANNULUS_RUN_ID", "B"}});
  siege.ExpectWorkAndEnd(2);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr Nanoseconds kMostDelay = 10 * kSecond;  // For a slow machine; what waits for a deadline takes longer.

// Starts all ranks but rank 0, which runs, and returns how long it took until all were ready.
Nanoseconds TimeToStartTheRest(Siege* siege, int nranks) {
  const Nanoseconds start = Now();
  for (int rank = 1; rank < nranks; ++rank) siege->Start(rank);
  EXPECT_TRUE(siege->ranks().WaitForLine("ready", Now() + kPatience)) << siege->Outputs();
  return Now() - start;
}

Nanoseconds TimeOfACalmStart(int nranks, const char* transport) {
  Siege siege(nranks, transport);
  siege.Start(0);
  const Nanoseconds took = TimeToStartTheRest(&siege, nranks);
  siege.ExpectWorkAndEnd(nranks);
  return took;
}

// Thousands of connections a second at the rendezvous, at the doors of links and at the control door, from two
// processes: silent ones, or some of which each says the beginning of a handshake, or a whole hello.
class FloodTest : public testing::TestWithParam<const char*> {};

TEST_P(FloodTest, RanksStartBesideIt) {
  constexpr int kRanks = 8;
  for (const char* transport : {"tcp", "shm"}) {
    SCOPED_TRACE(transport);
    const Nanoseconds calm = TimeOfACalmStart(kRanks, transport);
    Siege siege(kRanks, transport);
    siege.Start(0);
    Child* floods[] = {siege.Send(GetParam()), siege.Send(GetParam())};
    siege.AwaitLogged("too many unproven");
    const Nanoseconds beside = TimeToStartTheRest(&siege, kRanks);
    if (HasFailure()) return;
    for (Child* flood : floods) flood->CloseInput();
    int connections = 0;
    for (Child* flood : floods) connections += siege.HearNumber(flood, "attacked");
    std::printf("%s, %s: %d ranks started within %.1f s beside %d connections, otherwise within %.1f s\n", GetParam(),
                transport, kRanks, static_cast<double>(beside) / kSecond, connections,
                static_cast<double>(calm) / kSecond);
    if (!kSanitized) {
      EXPECT_LT(beside, 3 * calm + kMostDelay);
    }
    siege.ExpectWorkAndEnd(kRanks);
  }
}

// Returns how long two ranks took to name a third one that never came.
Nanoseconds TimeToMissARank(const char* stray) {
  Siege siege(3, "tcp");
  const Nanoseconds start = Now();
  for (int rank = 0; rank < 2; ++rank) siege.Start(rank, {{"ANNULUS_CONNECT_TIMEOUT_MS", "3000"}});
  Child* flood = stray == nullptr ? nullptr : siege.Send(stray);
  for (int rank = 0; rank < 2; ++rank) {
    Child& worker = siege.ranks().worker(rank);
    EXPECT_EQ(worker.ExitStatus(Now() + kPatience), 1) << worker.output();
    EXPECT_NE(worker.After("create").find("rank 2 did not arrive"), std::string::npos) << worker.output();
  }
  const Nanoseconds took = Now() - start;
  if (flood != nullptr) flood->CloseInput();
  return took;
}

TEST_P(FloodTest, MissingRankIsNamedInTimeBesideIt) {
  const Nanoseconds usual = TimeToMissARank(nullptr);
  const Nanoseconds beside = TimeToMissARank(GetParam());
  std::printf("%s: a missing rank was named after %.2f s, otherwise after %.2f s\n", GetParam(),
              static_cast<double>(beside) / kSecond, static_cast<double>(usual) / kSecond);
  EXPECT_LT(beside, usual + kMostDelay);
}

INSTANTIATE_TEST_SUITE_P(Kinds, FloodTest, testing::Values("flood", "babble"),
                         [](const auto& info) { return std::string(info.param); });

// Somebody on the path between rank 1 and rank 0 records how rank 1 proves itself, and says the same to every door
// while rank 2 is still missing.
TEST(ReplayTest, RecordingOpensNoDoor) {
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    Siege siege(3, transport);
    siege.Start(0);
    Child* relay = siege.Send("relay");
    const std::string port = siege.Hear(relay, "port");
    siege.Start(1, {{"ANNULUS_RENDEZVOUS", "127.0.0.1:" + port}});
    const std::string recording = siege.Hear(relay, "recorded");
    EXPECT_EQ(siege.HearNumber(siege.Send("replay=" + recording), "attacked"), 3);
    siege.AwaitLogged("wrong job key");
    siege.Start(2);
    siege.ExpectWorkAndEnd(3);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(siege.Dropped(rank, "no valid hello"), 1) << siege.ranks().output(rank);  // That of a link says more.
    }
    EXPECT_EQ(siege.Dropped(0, "wrong job key"), 1) << siege.ranks().output(0);
  }
}

}  // namespace
}  // namespace annulus
