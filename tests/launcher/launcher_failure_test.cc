// annulus-run when something goes wrong: it names the culprit, ends everyone, and leaves no process behind.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>

#include "base/clock.h"
#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The pid that each rank printed as its first line.
std::string PidOf(const LauncherRun& run, int rank) {
  const std::vector<std::string> lines = run.LinesOf(rank);
  return lines.empty() ? "" : lines[0];
}

TEST(LauncherFailure, FirstFailureEndsAllWithItsStatus) {
  LauncherRun run(ShellRanks(4, "echo $$; if [ $ANNULUS_RANK = 2 ]; then exit 7; fi; exec sleep 1000"));
  EXPECT_EQ(run.Finish(), 7);
  EXPECT_EQ(run.err(),
            "annulus-run: rank 2 (pid " + PidOf(run, 2) + ") exited with status 7; ending the other ranks\n");
  ExpectNoOrphans();
}

TEST(LauncherFailure, SignalIsNamed) {
  LauncherRun run(ShellRanks(3, "echo $$; if [ $ANNULUS_RANK = 1 ]; then kill -KILL $$; fi; exec sleep 1000"));
  EXPECT_EQ(run.Finish(), 128 + SIGKILL);
  EXPECT_EQ(run.err(), "annulus-run: rank 1 (pid " + PidOf(run, 1) +
                           ") was killed by signal 9 (Killed); ending the other ranks\n");
  ExpectNoOrphans();
}

TEST(LauncherFailure, LastRankToFailHasNoOthersToEnd) {
  LauncherRun run(ShellRanks(1, "echo $$; exit 3"));
  EXPECT_EQ(run.Finish(), 3);
  EXPECT_EQ(run.err(), "annulus-run: rank 0 (pid " + PidOf(run, 0) + ") exited with status 3\n");
}

// Rank 0 stands for one that exits because it lost rank 1, as soon as that is dead, and may be reaped first.
TEST(LauncherFailure, KilledRankIsTheCulpritAndNotItsFollower) {
  const std::string fifo = testing::TempDir() + "/follow";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string follow =
      "read pid < " + fifo + "; while kill -0 $pid && ! grep -q '^State:.Z' /proc/$pid/status; do :; done 2>/dev/null";
  LauncherRun run(ShellRanks(
      2, "if [ $ANNULUS_RANK = 0 ]; then " + follow + "; exit 1; fi; echo $$ > " + fifo + "; kill -SEGV $$"));
  EXPECT_EQ(run.Finish(), 128 + SIGSEGV);
  EXPECT_TRUE(Contains(run.err(), "rank 1 (pid ")) << run.err();
  EXPECT_TRUE(Contains(run.err(), "was killed by signal 11 (Segmentation fault)")) << run.err();
}

// The process that is rank 1 dies and so ends rank 0; its parent, which annulus-run started, takes longer.
TEST(LauncherFailure, ARankThatVerdictsNameIsTheCulpritAndNotItsFollowers) {
  LauncherRun run(ShellRanks(3,
                             "rank=tests/launcher/watch/watch_rank; if [ $ANNULUS_RANK != 1 ]; then exec $rank; fi; "
                             "$rank | { read pid; kill -KILL $pid; sleep 0.4; exit 7; }"));
  EXPECT_EQ(run.Finish(), 7) << run.err();
  EXPECT_TRUE(Contains(run.err(), "annulus-run: rank 1 (pid ")) << run.err();
  EXPECT_TRUE(Contains(run.err(), "exited with status 7")) << run.err();
  ExpectNoOrphans();
}

// The others lose it within milliseconds, fail too, and may be reaped first.
TEST(LauncherFailure, ARankThatExitsIsTheCulpritAndNotThoseThatFailForIt) {
  const uint64_t rounds = Rounds(kSanitized ? 5 : 12, 600);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const int nranks = 2 + static_cast<int>(round % 3);
    const std::string culprit = std::to_string((round / 3) % nranks);
    LauncherRun run({.arguments = {"-np", std::to_string(nranks), "tests/launcher/watch/watch_rank", culprit, "7"}});
    EXPECT_EQ(run.Finish(), 7) << run.err();
    EXPECT_TRUE(Contains(run.err(), "annulus-run: rank " + culprit + " (pid ")) << run.err();
    EXPECT_TRUE(Contains(run.err(), "exited with status 7")) << run.err();
    ExpectNoOrphans();
  }
}

TEST(LauncherFailure, ACulpritThatDoesNotEndIsNotWaitedForLong) {
  LauncherRun run(ShellRanks(2,
                             "rank=tests/launcher/watch/watch_rank; if [ $ANNULUS_RANK != 1 ]; then exec $rank; fi; "
                             "$rank | { read pid; kill -KILL $pid; echo killed; exec sleep 1000; }"));
  run.AwaitLines(2);
  const Nanoseconds start = Now();
  EXPECT_EQ(run.Finish(), 1) << run.err();
  EXPECT_LT(Now() - start, 3 * kSecond);
  EXPECT_TRUE(Contains(run.err(), "annulus-run: rank 0 (pid ")) << run.err();
  ExpectNoOrphans();
}

// Memory files for shared memory are larger than this limit; the kernel would kill who makes them.
TEST(LauncherFailure, ALimitOnTheSizeOfFilesIsNamedAndKillsNobody) {
  const std::string rank = "ulimit -f 8; exec tests/launcher/watch/watch_rank 1 7";
  LauncherRun refused(ShellRanks(2, "ANNULUS_TRANSPORT=shm; export ANNULUS_TRANSPORT; " + rank));
  EXPECT_EQ(refused.Finish(), 1);
  EXPECT_TRUE(Contains(refused.err(), "shm: memory files")) << refused.err();
  EXPECT_TRUE(Contains(refused.err(), "ulimit -f, is 4096 bytes")) << refused.err();
  LauncherRun over_tcp(ShellRanks(2, rank));  // That both come so far shows that they have a communicator.
  EXPECT_EQ(over_tcp.Finish(), 7) << over_tcp.err();
}

TEST(LauncherFailure, RanksThatSucceedEarlyAreNoFailure) {
  LauncherRun run(ShellRanks(2, "if [ $ANNULUS_RANK = 0 ]; then exit 0; fi; sleep 0.2; echo late"));
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "[1] late\n");
}

TEST(LauncherFailure, SignalsToTheLauncherEndAll) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    LauncherRun run(ShellRanks(3, "echo ready; exec sleep 1000"));
    run.AwaitLines(3);
    const Nanoseconds start = Now();
    kill(run.pid(), signal);
    EXPECT_EQ(run.Finish(), 128 + signal);
    EXPECT_LT(Now() - start, 2 * kSecond);  // No rank needed the grace time.
    EXPECT_TRUE(run.err().starts_with("annulus-run: stopped by signal " + std::to_string(signal))) << run.err();
    ExpectNoOrphans();
  }
}

TEST(LauncherFailure, TerminalsInterruptIsNoFailureOfARank) {
  LauncherRun::Setup setup = ShellRanks(3, "echo ready; exec sleep 1000");
  setup.own_group = true;
  LauncherRun run(setup);
  run.AwaitLines(3);
  kill(-run.pid(), SIGINT);  // As the terminal does: to the launcher and to all ranks.
  EXPECT_EQ(run.Finish(), 128 + SIGINT);
  EXPECT_TRUE(run.err().starts_with("annulus-run: stopped by signal 2")) << run.err();
  EXPECT_FALSE(Contains(run.err(), "rank ")) << run.err();
  ExpectNoOrphans();
}

TEST(LauncherFailure, RanksMayEndInTheirOwnWay) {
  LauncherRun run(ShellRanks(2, "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"));
  run.AwaitLines(2);
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  EXPECT_EQ(run.LinesOf(0).back(), "saved");
  EXPECT_EQ(run.LinesOf(1).back(), "saved");
}

// kill %1, scancel, the end of a session: the launcher, its supervisor and the ranks all get the signal.
TEST(LauncherFailure, ASignalToTheWholeGroupLeavesRanksTheirTimeToo) {
  for (const bool process_first : {false, true}) {  // As timeout(1) does.
    LauncherRun::Setup setup = ShellRanks(
        2, "trap \"trap '' TERM; sleep 0.6; echo saved; exit 0\" TERM; echo ready; while :; do sleep 0.02; done");
    setup.own_group = true;
    LauncherRun run(setup);
    run.AwaitLines(2);
    if (process_first) kill(run.pid(), SIGTERM);
    kill(-run.pid(), SIGTERM);
    EXPECT_EQ(run.Finish(), 128 + SIGTERM);
    EXPECT_EQ(run.LinesOf(0).back(), "saved");
    EXPECT_EQ(run.LinesOf(1).back(), "saved");
  }
}

TEST(LauncherFailure, RanksThatIgnoreSigtermAreKilledAfterTheGraceTime) {
  LauncherRun run(ShellRanks(2, "trap '' TERM; echo ready; while :; do sleep 0.1; done"));
  run.AwaitLines(2);
  const Nanoseconds start = Now();
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  EXPECT_GT(Now() - start, 2900 * kMillisecond);
  EXPECT_LT(Now() - start, 8 * kSecond);
  ExpectNoOrphans();
}

TEST(LauncherFailure, SecondSignalKillsAtOnce) {
  LauncherRun run(ShellRanks(2, "trap 'sleep 0.3; echo no' TERM; echo ready; while :; do sleep 0.02; done"));
  run.AwaitLines(2);
  kill(run.pid(), SIGTERM);
  run.AwaitLines(4);
  const Nanoseconds start = Now();
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  EXPECT_LT(Now() - start, 2500 * kMillisecond);
  ExpectNoOrphans();
}

// Neither a signal nor the end of the job's time has to wait for who reads the output.
TEST(LauncherFailure, ATerminalThatDoesNotReadKeepsNobodyFromEndingTheJob) {
  LauncherRun::Setup setup = ShellRanks(2, "exec yes a line >&2");
  setup.terminal = true;
  setup.run_time = 60 * kSecond;
  LauncherRun run(setup);
  run.AwaitStandstill();
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.AwaitExit(), 128 + SIGTERM);
  ExpectNoOrphans();
}

TEST(LauncherFailure, StoppedRanksEndToo) {
  LauncherRun run(ShellRanks(2, "echo ready; if [ $ANNULUS_RANK = 0 ]; then kill -STOP $$; fi; exec sleep 1000"));
  run.AwaitLines(2);
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  ExpectNoOrphans();
}

TEST(LauncherFailure, KilledLauncherTakesAllWithIt) {
  LauncherRun run(ShellRanks(2, "setsid sleep 1000 & sleep 1000 & echo ready; wait"));
  run.AwaitLines(2);
  kill(run.pid(), SIGKILL);
  EXPECT_EQ(run.Finish(), 128 + SIGKILL);
  ExpectNoOrphans();
}

TEST(LauncherFailure, KilledSupervisorTakesAllWithIt) {
  LauncherRun run(ShellRanks(2, "setsid sleep 1000 & sleep 1000 & echo $PPID; wait"));
  run.AwaitLines(2);
  kill(std::stoi(run.LinesOf(0).at(0)), SIGKILL);
  EXPECT_EQ(run.Finish(), 128 + SIGKILL);
  EXPECT_TRUE(Contains(run.err(), "the supervisor (pid " + run.LinesOf(0).at(0) + ") was killed by signal 9"))
      << run.err();
  ExpectNoOrphans();
}

TEST(LauncherFailure, GrandchildrenOfAFailedRankEndToo) {
  LauncherRun run(ShellRanks(2, "(setsid sh -c 'sleep 1000 & sleep 1000' &) ; exit $ANNULUS_RANK"));
  EXPECT_EQ(run.Finish(), 1);
  ExpectNoOrphans();
}

TEST(LauncherFailure, WhatSuccessfulRanksLeaveBehindEnds) {
  LauncherRun run(ShellRanks(2, "setsid sleep 1000 & echo done"));
  EXPECT_EQ(run.Finish(), 0) << run.err();
  EXPECT_EQ(run.err(), "");
  ExpectNoOrphans();
}

TEST(LauncherFailure, TimeoutEndsAll) {
  LauncherRun run({.arguments = {"--timeout", "1", "-np", "2", "sleep", "1000"}});
  const Nanoseconds start = Now();
  EXPECT_EQ(run.Finish(), 124);
  EXPECT_GE(Now() - start, 900 * kMillisecond);
  EXPECT_EQ(run.err(), "annulus-run: the job ran longer than 1 s; ending all ranks\n");
  ExpectNoOrphans();
}

TEST(LauncherFailure, OutputThatCannotBeWrittenIsNoSuccessAndNoFailureOfARank) {
  LauncherRun::Setup setup = ShellRanks(2, "for i in 1 2 3; do echo $i; sleep 0.05; done; echo end >&2");
  setup.output = "/dev/full";
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 125);
  const std::string message = "annulus-run: cannot write standard output: No space left on device";
  EXPECT_NE(run.err().find(message), std::string::npos) << run.err();
  EXPECT_EQ(run.err().rfind(message), run.err().find(message)) << "said twice: " << run.err();
  for (const char* line : {"[0] end\n", "[1] end\n"}) EXPECT_TRUE(Contains(run.err(), line)) << run.err();
}

TEST(LauncherFailure, AFailureOfARankCountsMoreThanLostOutput) {
  LauncherRun::Setup setup = ShellRanks(1, "echo 1; exit 7");
  setup.output = "/dev/full";
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 7);
}

TEST(LauncherFailure, LastWordsOfAFailedRankArrive) {
  LauncherRun run(
      ShellRanks(2, "if [ $ANNULUS_RANK = 1 ]; then seq 1 20000; echo bye >&2; exit 4; fi; exec sleep 1000"));
  EXPECT_EQ(run.Finish(), 4);
  EXPECT_EQ(run.LinesOf(1).size(), 20'000u);
  EXPECT_TRUE(Contains(run.err(), "[1] bye\n")) << run.err();
}

}  // namespace
}  // namespace annulus
