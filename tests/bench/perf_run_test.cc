// annulus-perf under annulus-run: every collective and type is right, and what goes wrong is seen and told.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr char kPerf[] = "bench/perf/annulus-perf";
// What a short run needs: the results are checked before and after the timing, however short that is.
constexpr char kQuick[] = "--seconds 0.001 -w 1";

std::string Temporary(const std::string& name) { return testing::TempDir() + "/" + name; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

LauncherRun::Setup Perf(int nranks, const std::string& arguments, std::vector<std::string> variables = {}) {
  LauncherRun::Setup setup;
  setup.arguments = {"-np", std::to_string(nranks), kPerf};
  std::istringstream words(arguments);
  for (std::string word; words >> word;) setup.arguments.push_back(word);
  setup.variables = std::move(variables);
  return setup;
}

struct Sweep {
  const char* collectives;
  size_t rows;  // Rows for each size and type.
};

struct Job {
  int nranks;
  const char* transport;
};

// How many ranks there are and how they are linked is not for the program to know: c_api_collectives_test has all of
// it. A sanitizer's build, which takes ten times as long, has two types.
constexpr const char* kTypes = kSanitized ? "float32,float8_e4m3" : "all";
constexpr size_t kNumTypes = kSanitized ? 2 : 14;
std::vector<Job> Jobs() {
  if (kSanitized) return {{3, "tcp"}};
  return {{2, "shm"}, {3, "tcp"}};
}

class EveryCollective : public testing::TestWithParam<std::tuple<Job, Sweep>> {};

TEST_P(EveryCollective, IsRightInEveryTypeAndOperation) {
  const auto [job, sweep] = GetParam();
  const std::string json_path = Temporary("all.json");
  LauncherRun run(Perf(job.nranks,
                       std::string("-b 4 -e 40000 -f 100 -r 1 -o all --limit 0 ") + kQuick + " -d " + kTypes +
                           " --collective " + sweep.collectives + " --json " + json_path,
                       {std::string("ANNULUS_TRANSPORT=") + job.transport}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const auto json = nlohmann::json::parse(ReadFile(json_path));
  EXPECT_EQ(json["machine"]["ranks"], job.nranks);
  EXPECT_EQ(json["wrong"], 0);
  constexpr size_t kSizes = 3;
  EXPECT_EQ(json["results"].size(), kSizes * kNumTypes * sweep.rows);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryCollective,
                         testing::Combine(testing::ValuesIn(Jobs()),
                                          testing::Values(Sweep{"allreduce", 5}, Sweep{"reduce_scatter", 5},
                                                          Sweep{"reduce", 5}, Sweep{"allgather,broadcast", 2},
                                                          Sweep{"gather,scatter,alltoall,sendrecv,pingpong", 5})));

TEST(Perf, TakesCountsInEveryMode) {
  const std::string json_path = Temporary("counts.json");
  LauncherRun run(Perf(3, std::string("--counts -b 12 -e 90000 -f 80 -r 1 --mode all --limit 0 ") + kQuick +
                              " --collective reduce_scatter,allgather,gather,scatter,alltoall --json " + json_path));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_NE(run.out().find("# reduce_scatterv "), std::string::npos) << run.out();
  const auto json = nlohmann::json::parse(ReadFile(json_path));
  EXPECT_EQ(json["wrong"], 0);
  EXPECT_EQ(json["results"].front()["collective"], "reduce_scatterv");
  EXPECT_EQ(json["results"].back()["collective"], "alltoallv");
}

TEST(Perf, ExplainsWhatIsChosenAndWhatIsNot) {
  LauncherRun run(Perf(2, "--explain -b 8 -e 1M -f 131072 --collective allreduce,gather", {"ANNULUS_TRANSPORT=tcp"}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const char* part :
       {"# 2 ranks on 1 host", "# costs: nominal costs", "TCP on one host: latency", "rank 1: tcp",
        "allreduce of 2 x 4 bytes: one_hop, not sliced; expected ", "  * one_hop", "adds in the ring's order",
        "tree        no candidate: ", "allreduce of 262144 x 4 bytes: ring, slices of up to ", "1 channel",
        "no candidate: more than four times ANNULUS_SMALL_BYTES", "# chosen by fixed bounds",
        "gather of 1 x 4 bytes: one_hop, not sliced", "  * direct"}) {
    EXPECT_NE(run.out().find(part), std::string::npos) << part << "\n" << run.out();
  }
}

TEST(Perf, ExplainsWhatTheTypeRulesOut) {
  LauncherRun run(Perf(2, "--explain -b 64K -e 64K -d int8"));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const char* part : {"allreduce of 65536 x 1 bytes: ring", "no candidate: elements of one byte"}) {
    EXPECT_NE(run.out().find(part), std::string::npos) << part << "\n" << run.out();
  }
}

TEST(Perf, ExplainsAWishAndMeasuredCosts) {
  LauncherRun run(Perf(3, "--explain -b 8 -e 8", {"ANNULUS_ALGORITHM=ring", "ANNULUS_TUNING=measured"}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const char* part : {"# costs: measured when the communicator was made", "shared memory of ring: latency",
                           "# ANNULUS_ALGORITHM: ring, where it is possible", "  * ring"}) {
    EXPECT_NE(run.out().find(part), std::string::npos) << part << "\n" << run.out();
  }
  EXPECT_EQ(run.out().find("shared memory of two_level"), std::string::npos) << run.out();
}

TEST(Perf, ExplainsRanksThatDoNotExist) {
  LauncherRun run(Perf(1, "--explain --ranks 64 --hosts 64 -b 1K -e 1K"));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const char* part : {"# 64 ranks on 64 hosts", "between hosts: latency", "allreduce of 256 x 4 bytes: tree"}) {
    EXPECT_NE(run.out().find(part), std::string::npos) << part << "\n" << run.out();
  }
}

TEST(Perf, ExplainsRanksThatDoNotExistByTheirLayoutAndTheEnvironment) {
  const std::string arguments = "--explain --ranks 8 --hosts 8 -b 1K -e 1K";
  const std::pair<std::string, std::string> cases[] = {
      {"", "log_gather"}, {"ANNULUS_ALGORITHM=one_hop", "one_hop"}, {"ANNULUS_SMALL_BYTES=512", "ring"}};
  for (const auto& [variable, algorithm] : cases) {
    LauncherRun run(Perf(1, arguments, variable.empty() ? std::vector<std::string>() : std::vector{variable}));
    ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
    const std::string wanted = "allreduce of 256 x 4 bytes: " + algorithm;
    EXPECT_NE(run.out().find(wanted), std::string::npos) << wanted << "\n" << run.out();
  }
}

TEST(Perf, ExplainsThatEncryptionRulesOutVerbs) {
  LauncherRun run(Perf(2, "--explain -b 8 -e 8", {"ANNULUS_TRANSPORT=verbs", "ANNULUS_ENCRYPT=required"}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const char* part : {"verbs is not used: it sends in clear", "and ANNULUS_ENCRYPT is required", "rank 1: shm"}) {
    EXPECT_NE(run.out().find(part), std::string::npos) << part << "\n" << run.out();
  }
}

TEST(Perf, ExplainsHowSlotsAreWritten) {
  for (const std::string stores : {"plain", "streaming"}) {
    LauncherRun run(Perf(2, "--explain -b 8 -e 8", {"ANNULUS_TRANSPORT=shm", "ANNULUS_SHM_STORES=" + stores}));
    ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
    const std::string wanted = "rank 1: shm, slots are written by " + stores + " stores\n";
    EXPECT_NE(run.out().find(wanted), std::string::npos) << run.out();
  }
  LauncherRun run(Perf(2, "--explain -b 8 -e 8", {"ANNULUS_TRANSPORT=tcp"}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_NE(run.out().find("rank 1: tcp\n"), std::string::npos) << run.out();
}

// The program alone, no launcher: its exit status, and in *told what it writes.
int RunAlone(const std::string& variables, const std::string& arguments, std::string* told) {
  const std::string output = Temporary("alone.txt");
  const std::string command = variables + " " + kPerf + " " + arguments + " >" + output + " 2>&1";
  const int status = std::system(command.c_str());
  *told = ReadFile(output);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Perf, RanksThatDoNotExistDoNotHideWhatTheirSettingsCannotDo) {
  std::string told;
  EXPECT_EQ(RunAlone("ANNULUS_TRANSPORT=shm", "--explain --ranks 4 --hosts 2", &told), 2);
  EXPECT_NE(told.find("ANNULUS_TRANSPORT is shm, which links ranks of one host only, and --hosts is 2"),
            std::string::npos)
      << told;
  EXPECT_EQ(RunAlone("ANNULUS_TRANSPORT=shm", "--explain --ranks 4 -b 8 -e 8", &told), 0) << told;
  EXPECT_EQ(RunAlone("ANNULUS_TUNING=measured", "--explain --ranks 4 -b 8 -e 8", &told), 0) << told;
  EXPECT_NE(told.find("there is nothing that ANNULUS_TUNING=measured could measure"), std::string::npos) << told;
  // As far as memory allows, which ranks that exist are told too.
  EXPECT_EQ(RunAlone("ANNULUS_MEMORY_BYTES=8388608", "--explain --ranks 4 -b 64M -e 64M", &told), 0) << told;
  EXPECT_NE(told.find("slices of up to 65536 bytes"), std::string::npos) << told;
  EXPECT_EQ(RunAlone("ANNULUS_MEMORY_BYTES=65536", "--explain --ranks 4 -b 64M -e 64M", &told), 2);
  EXPECT_NE(told.find("4 ranks need at least"), std::string::npos) << told;
}

TEST(Perf, AWrongVariableIsToldWithoutARank) {
  for (const char* arguments : {"--explain --ranks 4", "-b 8 -e 8"}) {
    std::string told;
    EXPECT_EQ(RunAlone("ANNULUS_ALGORITHM=foo", arguments, &told), 1);
    EXPECT_EQ(told,
              "annulus-perf: invalid argument: ANNULUS_ALGORITHM is \"foo\"; allowed: auto, two_level, tree, "
              "log_gather, log_steps, one_hop, shared_fold, two_hop or ring\n");
  }
}

TEST(Perf, TimesABarrier) {
  LauncherRun run(Perf(3, std::string("--collective barrier ") + kQuick));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_NE(run.out().find("# barrier"), std::string::npos) << run.out();
}

TEST(Perf, MeasuresTheLimitOfBothTransports) {
  for (const char* transport : {"shm", "tcp"}) {
    const std::string json_path = Temporary("limit.json");
    LauncherRun run(Perf(3,
                         std::string("-b 64K -e 64K --collective allreduce,broadcast,alltoall,sendrecv,pingpong ") +
                             kQuick + " --json " + json_path,
                         {std::string("ANNULUS_TRANSPORT=") + transport, "ANNULUS_ALGORITHM=ring"}));
    ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
    const auto json = nlohmann::json::parse(ReadFile(json_path));
    EXPECT_EQ(json["machine"]["algorithm"], "ring");
    EXPECT_EQ(json["machine"]["tuning"], "nominal");
    EXPECT_EQ(json["machine"]["tcp_sockets"], 0);
    EXPECT_EQ(json["machine"]["encrypt"], "off");
    EXPECT_GE(json["machine"]["cores_online"], json["machine"]["cores"]);
    EXPECT_NE(run.out().find("# ANNULUS_ALGORITHM: ring, where"), std::string::npos) << run.out();
    EXPECT_EQ(json["machine"]["links"], std::string(transport) == "shm" ? "shared memory" : "TCP");
    for (const auto& row : json["results"]) EXPECT_GT(row["limit_us"].get<double>(), 0) << row;
  }
}

TEST(Perf, GatherAndScatterHaveNoLimit) {
  LauncherRun run(
      Perf(2, std::string("-b 1K -e 1K --collective gather,scatter --csv ") + Temporary("root.csv") + " " + kQuick));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const std::string csv = ReadFile(Temporary("root.csv"));
  EXPECT_NE(csv.find("gather,2,shared memory,1024,128,float32,,0,in_place,"), std::string::npos) << csv;
  // No limit's time, no share of it, nothing wrong.
  EXPECT_NE(csv.find(",0,,0,blocking,1,,,\n"), std::string::npos) << csv;
}

TEST(Perf, EveryModeIsRight) {
  for (const int nranks : {1, 2, 3}) {
    for (const char* calls : {"1", "4"}) {
      if ((nranks == 2) != (calls[0] == '1') || (kSanitized && nranks == 3)) continue;
      const std::string json_path = Temporary("modes.json");
      LauncherRun run(Perf(nranks, std::string("-b 1K -e 100K -f 100 --limit 0 --mode all --collective all -m ") +
                                       calls + " " + kQuick + " --json " + json_path));
      ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
      const auto json = nlohmann::json::parse(ReadFile(json_path));
      EXPECT_EQ(json["wrong"], 0);
      // Ten calls, and the barrier, which has one size, in four modes; pingpong in two.
      EXPECT_EQ(json["results"].size(), 2u * (9 * 4 + 2) + 4);
      for (const auto& row : json["results"]) EXPECT_EQ(std::to_string(row["calls"].get<int>()), calls);
    }
  }
}

TEST(Perf, CallsInFlightAndGroupsHaveALimit) {
  const std::string json_path = Temporary("modes_limit.json");
  LauncherRun run(Perf(
      2,
      std::string("-b 64K -e 64K -m 16 --mode async,group --collective allreduce,sendrecv -n 5 --json ") + json_path));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  const nlohmann::json json = nlohmann::json::parse(ReadFile(json_path));
  for (const auto& row : json["results"]) {
    EXPECT_GT(row["limit_us"].get<double>(), 0) << row;
  }
}

nlohmann::json OverlapRows() {
  const std::string json_path = Temporary("overlap.json");
  LauncherRun run(Perf(2, "-b 8 -e 256K -f 32768 --mode overlap --collective allreduce,sendrecv,barrier --json " +
                              json_path + " " + kQuick));
  EXPECT_EQ(run.Finish(), 0) << run.err();
  return nlohmann::json::parse(ReadFile(json_path))["results"];
}

TEST(Perf, MeasuresHowMuchOfACallComputingHides) {
  // What was computed took its time, in one of a few runs: other programs may have the cores meanwhile.
  const auto takes_time = [](const nlohmann::json& row) {
    const auto& form = row["out_of_place"];
    return form["median_us"].get<double>() > form["computing_us"].get<double>() / 2;
  };
  nlohmann::json rows = OverlapRows();
  for (int tries = 1; tries < 5 && !std::all_of(rows.begin(), rows.end(), takes_time); ++tries) rows = OverlapRows();
  ASSERT_EQ(rows.size(), 5u);
  for (const auto& row : rows) {
    const auto& form = row["out_of_place"];
    EXPECT_TRUE(form["alone_us"].get<double>() > 0 && form["computing_us"].get<double>() > 0 && takes_time(row)) << row;
    EXPECT_LE(form["overlap_percent"].get<double>(), 100) << row;
    EXPECT_EQ(row["limit_us"], 0) << row;
  }
}

TEST(Perf, SeesWrongElementsInEveryMode) {
  LauncherRun run(Perf(2, std::string("-b 1K -e 1K --limit 0 -m 4 --mode all --corrupt 3 ") + kQuick));
  EXPECT_EQ(run.Finish(), 3) << run.out() << run.err();
  // Two checks of each of two forms in four modes.
  EXPECT_NE(run.out().find("# wrong elements: 48"), std::string::npos) << run.out();
}

TEST(Perf, SeesWrongElementsOfDirectExchange) {
  for (const char* collective : {"gather", "scatter", "alltoall", "sendrecv", "pingpong"}) {
    for (const char* root : {"0", "1"}) {
      LauncherRun run(Perf(2, std::string("-b 1K -e 1K --limit 0 --corrupt 3 --collective ") + collective + " -r " +
                                  root + " " + kQuick));
      EXPECT_EQ(run.Finish(), 3) << run.out() << run.err();
      const bool one_form = std::string(collective) != "gather" && std::string(collective) != "scatter";
      // Two checks of each form.
      const std::string told = std::string("# wrong elements: ") + (one_form ? "6" : "12");
      EXPECT_NE(run.out().find(told), std::string::npos) << run.out();
    }
  }
}

TEST(Perf, CountsWrongElementsAndFails) {
  LauncherRun run(Perf(2, std::string("-b 1K -e 1K --limit 0 --corrupt 3 ") + kQuick));
  EXPECT_EQ(run.Finish(), 3) << run.out() << run.err();
  // Two checks of each of the two forms.
  EXPECT_NE(run.out().find("# wrong elements: 12"), std::string::npos) << run.out();
}

TEST(Perf, TimesNoFewerCallsThanAskedFor) {
  for (const int calls : {1, 7, 50, 199}) {
    const std::string json_path = Temporary("calls.json");
    LauncherRun run(Perf(2, "-b 8 -e 8 --limit 0 -w 1 -n " + std::to_string(calls) + " --json " + json_path,
                         {"ANNULUS_TRANSPORT=shm"}));
    ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
    const auto json = nlohmann::json::parse(ReadFile(json_path));
    const auto& form = json["results"][0]["out_of_place"];
    EXPECT_GE(form["samples"].get<int>() * form["calls_per_sample"].get<int>(), calls);
    EXPECT_GE(form["samples"], std::min(calls, 5));
  }
}

TEST(Perf, SaysInTheFileThatItFailed) {
  const std::string json_path = Temporary("failed.json");
  LauncherRun run(Perf(2, "-b 4611686018427387904 -e 4611686018427387904 -m 1024 --json " + json_path));
  EXPECT_EQ(run.Finish(), 1) << run.out() << run.err();
  EXPECT_NE(run.err().find("cannot allocate buffers of 4611686018427387904 bytes"), std::string::npos) << run.err();
  const auto json = nlohmann::json::parse(ReadFile(json_path));
  EXPECT_NE(json["error"].get<std::string>().find("cannot allocate"), std::string::npos) << json;
}

TEST(Perf, WritesNothingOfTheEnvironment) {
  const std::string json_path = Temporary("secret.json"), csv_path = Temporary("secret.csv");
  LauncherRun run(Perf(2, std::string("-b 8 -e 8 ") + kQuick + " --json " + json_path + " --csv " + csv_path,
                       {"ANNULUS_JOB_KEY=correct-horse-battery-staple", "CLOUD_TOKEN=swordfish-9281"}));
  ASSERT_EQ(run.Finish(), 0) << run.out() << run.err();
  for (const std::string& text : {ReadFile(json_path), ReadFile(csv_path), run.out(), run.err()}) {
    EXPECT_EQ(text.find("correct-horse"), std::string::npos);
    EXPECT_EQ(text.find("swordfish"), std::string::npos);
    EXPECT_EQ(text.find("CLOUD_TOKEN"), std::string::npos);
  }
  EXPECT_NE(ReadFile(csv_path).find("allreduce,2,shared memory,8,2,float32,sum,,out_of_place,"), std::string::npos);
}

TEST(Perf, OneRankTellsOfWrongArguments) {
  LauncherRun run(Perf(3, "-d float8"));
  EXPECT_EQ(run.Finish(), 2) << run.out() << run.err();
  const std::string told = "'float8' is unknown";
  const size_t first = run.err().find(told);
  ASSERT_NE(first, std::string::npos) << run.err();
  EXPECT_EQ(run.err().find(told, first + 1), std::string::npos) << run.err();
}

TEST(Perf, AFileThatCannotBeWrittenIsToldOnceAndAtOnce) {
  for (const char* option : {"--json", "--csv"}) {
    LauncherRun run(Perf(3, std::string(option) + " /nowhere/results -b 8 -e 8"));
    EXPECT_EQ(run.Finish(), 1) << run.out() << run.err();
    const std::string told = "annulus-perf: ";
    const size_t first = run.err().find(told);
    ASSERT_NE(first, std::string::npos) << run.err();
    EXPECT_NE(run.err().find("rank 0: system error: cannot write /nowhere/results: No such file"), std::string::npos)
        << run.err();
    EXPECT_EQ(run.err().find(told, first + 1), std::string::npos) << run.err();
    EXPECT_NE(run.err().find("annulus-run: rank 0 "), std::string::npos) << run.err();
    EXPECT_EQ(run.out(), "");
  }
}

TEST(Perf, AMisspeltVariableIsToldOnceOnAHost) {
  LauncherRun run(Perf(3, "-b 8 -e 8 --limit 0 -n 1", {"ANNULUS_CHANELS=2"}));
  EXPECT_EQ(run.Finish(), 0) << run.out() << run.err();
  const std::string told = "unknown environment variables are ignored: ANNULUS_CHANELS";
  const size_t first = run.err().find(told);
  ASSERT_NE(first, std::string::npos) << run.err();
  EXPECT_EQ(run.err().find(told, first + 1), std::string::npos) << run.err();
}

TEST(Perf, ARootThatIsNoRankIsRefused) {
  LauncherRun run(Perf(2, "--collective broadcast -r 2"));
  EXPECT_EQ(run.Finish(), 2) << run.out() << run.err();
  EXPECT_NE(run.err().find("there is no rank 2"), std::string::npos) << run.err();
}

TEST(Perf, AloneItRunsAndSaysHowToStartMore) {
  std::string told;
  EXPECT_EQ(RunAlone("", std::string("-b 8 -e 64 --collective all ") + kQuick, &told), 0) << told;
  EXPECT_NE(told.find("annulus-run -np 4 annulus-perf"), std::string::npos);
  EXPECT_NE(told.find("# 1 rank on 1 host"), std::string::npos);
}

}  // namespace
}  // namespace annulus
