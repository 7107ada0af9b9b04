// Shares of cores: the split alone, what the kernel tells of cores, and the masks that real ranks see.
#include "launcher/local/binding.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/launcher/launcher_run.h"

namespace annulus {
namespace {

using Shares = std::vector<std::vector<int>>;

// Cores of one CPU each, on one package.
std::vector<Cpu> Plain(const std::vector<int>& numbers) {
  std::vector<Cpu> cpus;
  for (const int number : numbers) cpus.push_back({number, number, 0});
  return cpus;
}

TEST(SplitCores, EqualSharesLieNextToEachOther) {
  EXPECT_EQ(SplitCores(Plain({0, 1}), 2), (Shares{{0}, {1}}));
  EXPECT_EQ(SplitCores(Plain({0, 1, 2, 3, 4, 5}), 2), (Shares{{0, 1, 2}, {3, 4, 5}}));
}

TEST(SplitCores, MasksMayHaveHoles) { EXPECT_EQ(SplitCores(Plain({1, 4, 5, 2000}), 2), (Shares{{1, 4}, {5, 2000}})); }

TEST(SplitCores, UnevenSharesDifferByOneCoreAndLeaveNoneOut) {
  EXPECT_EQ(SplitCores(Plain({0, 1, 2, 3, 4, 5, 6, 7}), 3), (Shares{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
  EXPECT_EQ(SplitCores(Plain({0, 1, 2}), 2), (Shares{{0}, {1, 2}}));
}

TEST(SplitCores, HyperthreadsOfACoreStayTogether) {
  const std::vector<Cpu> far{{0, 0, 0}, {1, 1, 0}, {2, 2, 0}, {3, 3, 0}, {4, 0, 0}, {5, 1, 0}, {6, 2, 0}, {7, 3, 0}};
  EXPECT_EQ(SplitCores(far, 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  const std::vector<Cpu> near{{0, 0, 0}, {1, 0, 0}, {2, 2, 0}, {3, 2, 0}};
  EXPECT_EQ(SplitCores(near, 2), (Shares{{0, 1}, {2, 3}}));
  const std::vector<Cpu> one_thread_missing{{0, 0, 0}, {1, 1, 0}, {5, 1, 0}};
  EXPECT_EQ(SplitCores(one_thread_missing, 2), (Shares{{0}, {1, 5}}));
}

TEST(SplitCores, PackagesAreNotMixedWhereNumbersAre) {
  const std::vector<Cpu> in_turn{{0, 0, 0}, {1, 1, 1}, {2, 2, 0}, {3, 3, 1}};
  EXPECT_EQ(SplitCores(in_turn, 2), (Shares{{0, 2}, {1, 3}}));
}

TEST(SplitCores, NobodyIsBoundWhereARankWouldHaveNoCore) {
  EXPECT_EQ(SplitCores(Plain({0, 1}), 3), Shares(3));
  const std::vector<Cpu> one_core{{0, 0, 0}, {1, 0, 0}};
  EXPECT_EQ(SplitCores(one_core, 2), Shares(2));
  EXPECT_EQ(SplitCores({}, 2), Shares(2));
}

TEST(SplitCores, SingleRankIsNotBound) { EXPECT_EQ(SplitCores(Plain({0, 1}), 1), Shares(1)); }

TEST(ReadTopology, CoresAndPackagesAsTheKernelWritesThem) {
  const std::string folder = testing::TempDir() + "/topology";
  const auto write = [&](const std::string& cpu, const std::string& name, const std::string& text) {
    const std::string path = folder + "/" + cpu + "/topology/";
    std::filesystem::create_directories(path);
    std::ofstream(path + name) << text << "\n";
  };
  write("cpu70", "core_cpus_list", "6,70");
  write("cpu70", "thread_siblings_list", "0-127");
  write("cpu70", "physical_package_id", "1");
  write("cpu3", "thread_siblings_list", "2-3");
  const std::vector<Cpu> cpus = ReadTopology({3, 9, 70}, folder);
  ASSERT_EQ(cpus.size(), 3u);
  EXPECT_EQ(cpus[0].core, 2);
  EXPECT_EQ(cpus[0].package, 0);
  EXPECT_EQ(cpus[1].number, 9);
  EXPECT_EQ(cpus[1].core, 9);
  EXPECT_EQ(cpus[2].core, 6);
  EXPECT_EQ(cpus[2].package, 1);
}

constexpr char kShowCpus[] = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status";

// The CPUs of "0-2,5".
std::set<int> ParseList(const std::string& text) {
  std::set<int> cpus;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    const size_t dash = range.find('-');
    const int last = std::stoi(dash == std::string::npos ? range : range.substr(dash + 1));
    for (int cpu = std::stoi(range); cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::set<int> OwnCpus() {
  const std::vector<int> cpus = AllowedCpus();
  return {cpus.begin(), cpus.end()};
}

// This machine has a core for each of two ranks.
bool HasTwoCores() { return !SplitCores(ReadTopology(AllowedCpus(), "/sys/devices/system/cpu"), 2)[0].empty(); }

std::vector<std::set<int>> CpusOfRanks(LauncherRun::Setup setup, int nranks) {
  setup.arguments.insert(setup.arguments.end(), {"sh", "-c", kShowCpus});
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 0) << run.err();
  std::vector<std::set<int>> cpus;
  for (int rank = 0; rank < nranks; ++rank) {
    const std::vector<std::string> lines = run.LinesOf(rank);
    cpus.push_back(ParseList(lines.size() == 1 ? lines[0] : ""));
  }
  return cpus;
}

// Two ranks' shares have nothing in common and are all that the launcher has, which is what this test has.
void ExpectShares(const std::set<int>& first, const std::set<int>& second) {
  if (!HasTwoCores()) {
    EXPECT_EQ(first, OwnCpus());
    EXPECT_EQ(second, OwnCpus());
    return;
  }
  EXPECT_FALSE(first.empty());
  EXPECT_FALSE(second.empty());
  std::set<int> both = first;
  both.insert(second.begin(), second.end());
  EXPECT_EQ(both.size(), first.size() + second.size());
  EXPECT_EQ(both, OwnCpus());
}

TEST(Binding, RanksHaveSharesByDefault) {
  const auto cpus = CpusOfRanks({.arguments = {"-np", "2"}}, 2);
  ExpectShares(cpus[0], cpus[1]);
  const auto asked = CpusOfRanks({.arguments = {"-np", "2", "--bind-to", "cores"}}, 2);
  EXPECT_EQ(asked, cpus);
}

TEST(Binding, NoneLeavesRanksWhereTheLauncherMayRun) {
  for (const auto& cpus : CpusOfRanks({.arguments = {"-np", "2", "--bind-to", "none"}}, 2)) EXPECT_EQ(cpus, OwnCpus());
}

TEST(Binding, MoreRanksThanCoresAreNotBound) {
  const int nranks = static_cast<int>(OwnCpus().size()) + 1;
  const std::vector<std::string> arguments{"-np", std::to_string(nranks)};
  for (const auto& cpus : CpusOfRanks({.arguments = arguments}, nranks)) EXPECT_EQ(cpus, OwnCpus());
}

TEST(Binding, MaskOfTheUserIsKept) {
  const std::vector<int> before = AllowedCpus();
  const CpuMask one = MaskOf({before.back()});
  ASSERT_EQ(sched_setaffinity(0, one.size() * sizeof(cpu_set_t), one.data()), 0);
  const auto cpus = CpusOfRanks({.arguments = {"-np", "2"}}, 2);
  const CpuMask all = MaskOf(before);
  ASSERT_EQ(sched_setaffinity(0, all.size() * sizeof(cpu_set_t), all.data()), 0);
  for (const auto& each : cpus) EXPECT_EQ(each, std::set<int>{before.back()});
}

// `annulus-run -H` of two hosts that are both this machine, behind a command in ssh's place.
std::vector<std::string> TwoHosts() {
  const std::string ssh = testing::TempDir() + "/no_ssh.sh";
  std::ofstream(ssh) << "shift\nexec sh -c \"$1\"\n";
  return {"--ssh", "sh " + ssh, "--rendezvous-host", "127.0.0.1", "-H", "one.test:2,other.test:1"};
}

TEST(Binding, EachHostSharesItsCoresAmongItsOwnRanks) {
  const auto cpus = CpusOfRanks({.arguments = TwoHosts()}, 3);
  ExpectShares(cpus[0], cpus[1]);
  EXPECT_EQ(cpus[2], OwnCpus());
}

TEST(Binding, NoneReachesOtherHosts) {
  std::vector<std::string> arguments = TwoHosts();
  arguments.insert(arguments.end(), {"--bind-to", "none"});
  for (const auto& each : CpusOfRanks({.arguments = arguments}, 3)) EXPECT_EQ(each, OwnCpus());
}

}  // namespace
}  // namespace annulus
