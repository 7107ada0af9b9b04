// annulus-run as its users meet it: environment, output, arguments, standard input.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "tests/base/descriptor_limit.h"
#include "tests/launcher/launcher_run.h"

namespace annulus {
namespace {

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Launcher, EachRankHasItsEnvironment) {
  LauncherRun run(ShellRanks(3,
                             "echo $ANNULUS_RANK $ANNULUS_SIZE $ANNULUS_LOCAL_RANK $ANNULUS_LOCAL_SIZE;"
                             "echo $ANNULUS_RENDEZVOUS; echo $ANNULUS_JOB_KEY"));
  ASSERT_EQ(run.Finish(), 0) << run.err();
  std::set<std::string> shared;
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<std::string> lines = run.LinesOf(rank);
    ASSERT_EQ(lines.size(), 3u);
    const std::string text = std::to_string(rank);
    EXPECT_EQ(lines[0], text + " 3 " + text + " 3");
    EXPECT_TRUE(lines[1].starts_with("127.0.0.1:")) << lines[1];
    EXPECT_EQ(lines[2].size(), 64u);
    EXPECT_EQ(lines[2].find_first_not_of("0123456789abcdef"), std::string::npos);
    shared.insert(lines[1] + lines[2]);
  }
  EXPECT_EQ(shared.size(), 1u);
  EXPECT_EQ(run.err(), "");
}

TEST(Launcher, EachRunHasAKeyOfItsOwnThatNoCommandLineShows) {
  std::set<std::string> keys;
  for (int i = 0; i < 2; ++i) {
    LauncherRun run(ShellRanks(2, "echo $ANNULUS_JOB_KEY; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; echo"));
    ASSERT_EQ(run.Finish(), 0);
    const std::string key = run.LinesOf(0).at(0);
    keys.insert(key);
    EXPECT_TRUE(Contains(run.out(), "annulus-run -np 2")) << "the command lines were not read";
    for (const std::string& line : {run.LinesOf(0).at(1), run.LinesOf(1).at(1)}) EXPECT_FALSE(Contains(line, key));
  }
  EXPECT_EQ(keys.size(), 2u);
}

TEST(Launcher, EachRunHasAnIdOfItsOwn) {
  std::set<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    LauncherRun::Setup setup = ShellRanks(2, "echo $ANNULUS_RUN_ID");
    setup.variables = {"ANNULUS_RUN_ID=of an outer run"};
    LauncherRun run(setup);
    ASSERT_EQ(run.Finish(), 0);
    EXPECT_EQ(run.LinesOf(0).at(0).size(), 16u);
    EXPECT_EQ(run.LinesOf(0), run.LinesOf(1));
    ids.insert(run.LinesOf(0).at(0));
  }
  EXPECT_EQ(ids.size(), 2u);
}

TEST(Launcher, KeyOfTheEnvironmentIsKept) {
  LauncherRun::Setup setup = ShellRanks(1, "echo $ANNULUS_JOB_KEY");
  setup.variables = {"ANNULUS_JOB_KEY=a key of my own choice"};
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "[0] a key of my own choice\n");
}

TEST(Launcher, RanksMayOpenAsManyFilesAsTheSystemAllows) {
  const rlim_t most = DescriptorLimit::Most();
  std::optional<DescriptorLimit> few(most / 2);
  LauncherRun run(ShellRanks(2, "ulimit -Sn"));
  few.reset();
  ASSERT_EQ(run.Finish(), 0) << run.err();
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(run.LinesOf(rank).at(0), std::to_string(most));
}

TEST(Launcher, SetsVariablesAndPassesArgumentsOn) {
  LauncherRun run({.arguments = {"-x", "COLOUR=red=ish", "-np", "1", "-x", "SIZE=", "sh", "-c",
                                 "echo $COLOUR-$SIZE \"$@\"", "sh", "-np", "--", "-x", "--help"}});
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "[0] red=ish- -np -- -x --help\n");
}

TEST(Launcher, FindsTheProgramOnThePathThatRanksGet) {
  const std::string folder = testing::TempDir() + "/programs";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder + "/my-own-echo");
  std::filesystem::create_symlink("/bin/echo", folder + "/my-own-echo");
  LauncherRun run({.arguments = {"-np", "1", "-x", "PATH=" + folder, "my-own-echo", "hello"}});
  EXPECT_EQ(run.Finish(), 0) << run.err();
  EXPECT_EQ(run.out(), "[0] hello\n");
}

TEST(Launcher, PrefixesBothStreamsAndEndsTheLastLine) {
  LauncherRun run(ShellRanks(1, "printf 'one\\n\\ntwo'; printf 'oops' >&2"));
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "[0] one\n[0] \n[0] two\n");
  EXPECT_EQ(run.err(), "[0] oops\n");
}

TEST(Launcher, PassesAnyBytes) {
  LauncherRun run(ShellRanks(1, "printf '\\000\\001\\377\\r\\033[1m\\n'"));
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), std::string("[0] \0\1\377\r\033[1m\n", 13));
}

TEST(Launcher, CutsEndlessLines) {
  LauncherRun run(ShellRanks(1, "head -c 150000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(run.Finish(), 0);
  const std::string whole = "[0] " + std::string(65'536, 'x') + "\n";
  EXPECT_TRUE(run.out() == whole + whole + "[0] " + std::string(150'000 - 2 * 65'536, 'x') + "\n");
}

TEST(Launcher, LinesOfTheLongestLengthStayWhole) {
  LauncherRun run(
      ShellRanks(1, "head -c 65535 /dev/zero | tr '\\0' x; echo; head -c 65536 /dev/zero | tr '\\0' y; echo; echo z"));
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_TRUE(run.out() == "[0] " + std::string(65'535, 'x') + "\n[0] " + std::string(65'536, 'y') + "\n[0] z\n");
}

TEST(Launcher, WithoutPrefixOutputIsUnchanged) {
  LauncherRun run({.arguments = {"--no-prefix", "-np", "1", "printf", "no newline"}});
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.out(), "no newline");
}

TEST(Launcher, BigOutputOfFourRanksArrivesWholeAndInOrder) {
  constexpr int kLines = 300'000;  // 2 MB of digits.
  LauncherRun run(ShellRanks(4, "seq 1 " + std::to_string(kLines)));
  ASSERT_EQ(run.Finish(), 0);
  std::vector<std::string> expected;
  for (int i = 1; i <= kLines; ++i) expected.push_back(std::to_string(i));
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(run.LinesOf(rank) == expected) << rank;
}

TEST(Launcher, RankZeroAloneReadsStandardInput) {
  LauncherRun::Setup setup = ShellRanks(3, "cat; echo end");
  setup.input = "hello\n";
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 0);
  EXPECT_EQ(run.LinesOf(0), (std::vector<std::string>{"hello", "end"}));
  EXPECT_EQ(run.LinesOf(1), std::vector<std::string>{"end"});
  EXPECT_EQ(run.LinesOf(2), std::vector<std::string>{"end"});
}

TEST(Launcher, MissingProgramIsNamed) {
  LauncherRun run({.arguments = {"-np", "2", "no-such-program"}});
  EXPECT_EQ(run.Finish(), 127);
  EXPECT_EQ(run.err(), "annulus-run: cannot run \"no-such-program\": No such file or directory\n");
  ExpectNoOrphans();
}

TEST(Launcher, ProgramThatIsNotExecutableIsNamed) {
  const std::string path = testing::TempDir() + "/plain.txt";
  std::ofstream(path) << "text\n";
  LauncherRun run({.arguments = {"-np", "2", path}});
  EXPECT_EQ(run.Finish(), 126);
  EXPECT_EQ(run.err(), "annulus-run: cannot run \"" + path + "\": Permission denied\n");
}

TEST(Launcher, WrongSettingIsReportedOnceBeforeAnyRankRuns) {
  LauncherRun::Setup setup = ShellRanks(4, "echo started");
  setup.variables = {"ANNULUS_CHANNELS=many"};
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 2);
  EXPECT_EQ(run.out(), "");
  EXPECT_EQ(run.err(), "annulus-run: ANNULUS_CHANNELS is \"many\"; allowed: a whole number from 1 to 16\n");
}

TEST(Launcher, ReaderThatLeavesEndsTheJobAsInAPipeline) {
  LauncherRun run(ShellRanks(2, "exec yes"));
  run.AwaitLines(10);
  run.CloseOut();
  EXPECT_EQ(run.Finish(), 128 + 13) << run.err();
  EXPECT_TRUE(Contains(run.err(), "was killed by signal 13")) << run.err();
  ExpectNoOrphans();
}

TEST(Launcher, ManyRanks) {
  LauncherRun run(ShellRanks(100, "echo $ANNULUS_RANK"));
  EXPECT_EQ(run.Finish(), 0) << run.err();
  for (int rank = 0; rank < 100; ++rank) EXPECT_EQ(run.LinesOf(rank), std::vector<std::string>{std::to_string(rank)});
}

}  // namespace
}  // namespace annulus
