// annulus-run --watch with real ranks: a rank that stops is shown as the one that the others wait for.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/launcher/launcher_run.h"

namespace annulus {
namespace {

constexpr char kRank[] = "tests/launcher/watch/watch_rank";

TEST(Watch, ARankThatIsStoppedIsTheOneThatTheOthersWaitFor) {
  LauncherRun run({.arguments = {"-np", "4", "--watch", kRank}});
  run.AwaitLines(4);
  run.AwaitError("rank 2: #");  // All are under way.
  const pid_t stopped = std::stoi(run.LinesOf(2).at(0));
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  run.AwaitError("3 ranks wait for rank 2, which is stopped");
  ASSERT_EQ(kill(stopped, SIGCONT), 0);
  const size_t seen = run.err().size();
  run.AwaitError(" s; rank 0: #", seen);  // Nobody waits any more.
  ASSERT_EQ(kill(run.pid(), SIGTERM), 0);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  ExpectNoOrphans();
}

TEST(Watch, ARankThatIsKilledEndsTheJobAsEver) {
  LauncherRun run({.arguments = {"-np", "3", "--watch", kRank}});
  run.AwaitLines(3);
  run.AwaitError("rank 1: #");
  ASSERT_EQ(kill(std::stoi(run.LinesOf(1).at(0)), SIGKILL), 0);
  EXPECT_EQ(run.Finish(), 128 + SIGKILL);
  EXPECT_NE(run.err().find("rank 1 (pid "), std::string::npos) << run.err();
  ExpectNoOrphans();
}

// The table is drawn, gives way to the last line, and leaves nothing behind it; elsewhere there is no sign of it.
TEST(Watch, OnATerminalIsATable) {
  LauncherRun run({.arguments = {"-np", "2", "--watch", kRank}, .terminal = true});
  run.AwaitLines(2);
  run.AwaitError("rank  call");
  run.AwaitError("#");
  ASSERT_EQ(kill(run.pid(), SIGTERM), 0);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
  const size_t erased = run.err().rfind("\r\033[J");
  ASSERT_NE(erased, std::string::npos);
  EXPECT_EQ(run.err().find("rank  call", erased), std::string::npos) << run.err();
  EXPECT_EQ(run.out().find('\033'), std::string::npos) << run.out();
}

TEST(Watch, ATableIsTakenAwayAtTheEndOfTheJob) {
  LauncherRun run({.arguments = {"-np", "2", "--watch", "sh", "-c", "sleep 1.2; echo done"}, .terminal = true});
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_NE(run.err().find("rank  call"), std::string::npos) << run.err();
  EXPECT_TRUE(run.err().ends_with("\r\033[J")) << run.err();
  EXPECT_EQ(run.out().find('\033'), std::string::npos) << run.out();
}

TEST(Watch, RanksThatNeverJoinAreShownSo) {
  LauncherRun run({.arguments = {"-np", "2", "--watch", "sh", "-c", "sleep 40"}});
  run.AwaitError("rank 0: not joined; rank 1: not joined");
  ASSERT_EQ(kill(run.pid(), SIGTERM), 0);
  EXPECT_EQ(run.Finish(), 128 + SIGTERM);
}

TEST(Watch, WithoutItNothingIsHandedDown) {
  LauncherRun run({.arguments = {"-np", "1", "sh", "-c", "echo \"<$ANNULUS_WATCH>\""}});
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "[0] <>\n");
  EXPECT_EQ(run.err(), "");
}

TEST(Watch, IsRefusedWithOtherHosts) {
  LauncherRun run({.arguments = {"-H", "elsewhere:2", "--watch", "true"}});
  EXPECT_EQ(run.Finish(), 2);
  EXPECT_NE(run.err().find("this machine only"), std::string::npos) << run.err();
}

}  // namespace
}  // namespace annulus
