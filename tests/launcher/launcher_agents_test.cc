// annulus-run with an agent on this host, which a script in place of ssh starts: output of many ranks, and readers that
// pause. tests/launchers_real has several hosts and a real ssh.
#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>

#include "base/clock.h"
#include "tests/launcher/launcher_run.h"

namespace annulus {
namespace {

// Longer than the time in which an agent must report the end of its ranks.
constexpr Nanoseconds kLongPause = 21 * kSecond;

LauncherRun::Setup RanksOfAgent(int nranks, const std::string& command) {
  return {.arguments = {"--ssh", "tests/launcher/local_ssh.sh", "-H", "other:" + std::to_string(nranks), "sh", "-c",
                        command}};
}

TEST(LauncherAgents, ABurstOfManyRanksWaitsForASlowReader) {
  constexpr int kRanks = 40;
  constexpr int kLines = 60'000;  // 340 kB, and 290 kB more with the prefixes.
  LauncherRun run(RanksOfAgent(kRanks, "seq 1 " + std::to_string(kLines)));
  run.AwaitStandstill();
  ASSERT_EQ(run.Finish(), 0) << run.err();
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<std::string> lines = run.LinesOf(rank);
    ASSERT_EQ(lines.size(), static_cast<size_t>(kLines)) << rank;
    EXPECT_EQ(lines.back(), std::to_string(kLines));
  }
  EXPECT_EQ(run.err(), "");
}

// The ranks end during the pause, with full pipes, so the agent has to keep their last lines.
TEST(LauncherAgents, AReaderThatPausesForLongLosesNothing) {
  LauncherRun run(RanksOfAgent(2, "if [ $ANNULUS_RANK = 0 ]; then timeout 1 yes; exit 0; fi; sleep 2; echo result"));
  run.AwaitStandstill();
  for (const Deadline end = DeadlineAfter(kLongPause); Now() < end;) poll(nullptr, 0, 100);
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.LinesOf(1), std::vector<std::string>{"result"});
  EXPECT_EQ(run.err(), "");
  ExpectNoOrphans();
}

TEST(LauncherAgents, AnInterruptDoesNotWaitForAReaderThatPauses) {
  LauncherRun run(RanksOfAgent(2, "exec yes a line of output"));
  run.AwaitStandstill();
  const Nanoseconds start = Now();
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.AwaitExit(), 128 + SIGINT);
  EXPECT_LT(Now() - start, 10 * kSecond);
  run.AwaitError("ending all ranks\n");
  EXPECT_EQ(run.err(), "annulus-run: stopped by signal 2 (Interrupt); ending all ranks\n");
  ExpectNoOrphans();
}

// The ranks have ended well, but what they have said is lost.
TEST(LauncherAgents, AnInterruptOfTheOutputAloneIsNoSuccess) {
  LauncherRun run(RanksOfAgent(2, "yes a line of output | head -n 20000"));
  run.AwaitStandstill();
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.AwaitExit(), 128 + SIGINT);
  ExpectNoOrphans();
}

TEST(LauncherAgents, OutputThatCannotBeWrittenIsNoSuccess) {
  LauncherRun::Setup setup = RanksOfAgent(2, "echo line; sleep 0.1; echo end >&2");
  setup.output = "/dev/full";
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 125);
  EXPECT_NE(run.err().find("annulus-run: cannot write standard output: No space left on device"), std::string::npos)
      << run.err();
  for (const char* line : {"[0] end\n", "[1] end\n"}) EXPECT_NE(run.err().find(line), std::string::npos) << run.err();
}

TEST(LauncherAgents, AMessageNamesTheProgramThatLedToTheAgent) {
  LauncherRun run(RanksOfAgent(1, "echo $PPID; exec sleep 1000"));
  run.AwaitLines(1);
  kill(std::stoi(run.LinesOf(0).at(0)), SIGKILL);
  EXPECT_EQ(run.Finish(), 255);
  EXPECT_NE(run.err().find("other: the connection broke (local_ssh.sh exited with status 137)"), std::string::npos)
      << run.err();
  ExpectNoOrphans();
}

}  // namespace
}  // namespace annulus
