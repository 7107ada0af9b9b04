// Strangers at every door of a real job, while it waits, while it starts and while it runs: it starts and its sums are
// right, and the log tells of each kind of stranger once.
#include <annulus.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/siege.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = Siege::kPatience;

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
  Child impostor(Siege::PathOf("FAULT_WORKER"), {"loop"}, other_key);
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
  Child left(Siege::PathOf("FAULT_WORKER"), {"loop"}, stale);
  EXPECT_EQ(left.ExitStatus(Now() + kPatience), 1) << left.output();
  EXPECT_EQ(left.After("create").substr(0, 2), std::to_string(ANNULUS_MISMATCH) + " ") << left.output();
  EXPECT_NE(left.output().find("this rank belongs to run A restart 0, rank 0 (unproven) to run B restart 0"),
            std::string::npos)
      << left.output();
  siege.AwaitLogged("another run");
  siege.Start(1, {{"ANNULUS_RUN_ID", "B"}});
  siege.ExpectWorkAndEnd(2);
}

// torchrun calls a run "none" unless it is told a name, so all its jobs have that: rank 0 says what may happen.
TEST(StaleRankTest, WhereNothingTellsStartsApartRankZeroWarns) {
  for (const char* run : {"none", "B"}) {
    const TestPort port;
    std::vector<std::unique_ptr<Child>> ranks;
    for (const char* rank : {"0", "1"}) {
      const Child::Environment environment = {{"RANK", rank},
                                              {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", rank},
                                              {"LOCAL_WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", std::to_string(port.port() - 1)},
                                              {"TORCHELASTIC_RUN_ID", run},
                                              {"ANNULUS_JOB_KEY", "a key for tests, of enough characters"}};
      ranks.push_back(
          std::make_unique<Child>(Siege::PathOf("FAULT_WORKER"), std::vector<std::string>{"until"}, environment));
    }
    ranks[0]->CloseInput();
    for (const auto& rank : ranks) EXPECT_EQ(rank->ExitStatus(Now() + kPatience), 0) << rank->output();
    const std::string doubt = "may be taken for its own (torchrun was given no --rdzv-id): give ANNULUS_RUN_ID";
    EXPECT_EQ(ranks[0]->CountLines("annulus[0] warning: ranks left over", doubt), run == std::string("none"))
        << ranks[0]->output();
    EXPECT_EQ(ranks[1]->CountLines("ranks left over"), 0) << ranks[1]->output();
  }
}

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
