// Summaries and reports: what the numbers mean, and that files hold what their readers expect.
#include "bench/perf/perf_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace annulus::perf {
namespace {

Row SampleRow() {
  Row row;
  row.spec = {Kind::kReduce, ANNULUS_BFLOAT16, ANNULUS_MAX, 1, 512};
  row.bytes = 1024;
  row.out.timing = {10, 8, 20, 100, 1};
  row.out.algbw = 0.1024;
  row.out.busbw = 0.1024;
  row.out.wrong = 0;
  row.in = row.out;
  row.in.wrong = 3;
  row.limit_us = 5;
  row.mode = Mode::kAsync;
  row.calls = 4;
  return row;
}

std::string Written(std::unique_ptr<Report> (*make)(std::ostream&), const Row& row) {
  std::ostringstream out;
  const std::unique_ptr<Report> report = make(out);
  Machine machine;
  machine.cpu_model = "a \"CPU\"";
  machine.ranks = 4;
  machine.links = "shared memory";
  machine.cost_settings = {{"pigeons", "2"}, {"sealed", "required"}};
  report->Begin(Options(), machine);
  report->Add(row);
  report->End(3);
  return out.str();
}

TEST(Summarise, TakesMedianLeastAndNinetyNinthPercentile) {
  std::vector<double> samples;
  for (int i = 200; i >= 1; --i) samples.push_back(i * 1e-6);
  const Timing timing = Summarise(samples, 3);
  EXPECT_DOUBLE_EQ(timing.median_us, 100.5);
  EXPECT_DOUBLE_EQ(timing.min_us, 1);
  EXPECT_DOUBLE_EQ(timing.p99_us, 198);
  EXPECT_EQ(timing.samples, 200);
  EXPECT_EQ(timing.calls_per_sample, 3);
}

TEST(Summarise, OneSampleIsAllThree) {
  const Timing timing = Summarise({2e-6}, 1);
  EXPECT_DOUBLE_EQ(timing.median_us, 2);
  EXPECT_DOUBLE_EQ(timing.min_us, 2);
  EXPECT_DOUBLE_EQ(timing.p99_us, 2);
}

TEST(BusFactor, IsWhatTheRingSends) {
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kAllreduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kAllgather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kReduce, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kAlltoall, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kSendrecv, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kPingpong, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Kind::kAllreduce, 1), 0);
}

TEST(SpecForBytes, RoundsUpToWholeElementsOfEveryRank) {
  EXPECT_EQ(SpecForBytes(Kind::kAllreduce, ANNULUS_FLOAT64, ANNULUS_SUM, 0, 12, 3).count, 2u);
  const CallSpec gather = SpecForBytes(Kind::kAllgather, ANNULUS_FLOAT32, ANNULUS_SUM, 0, 8, 4);
  EXPECT_EQ(gather.count, 1u);
  EXPECT_EQ(LargerBytes(gather, 4), 16u);
}

TEST(SpecForBytes, TheSizeIsThatOfTheLargerBuffer) {
  for (const Kind kind : kAllKinds) {
    if (kind == Kind::kBarrier) continue;
    const CallSpec spec = SpecForBytes(kind, ANNULUS_INT8, ANNULUS_SUM, 0, 12, 3);
    EXPECT_EQ(LargerBytes(spec, 3), 12u) << KindName(kind);
    EXPECT_EQ(SendCount(spec, 3) == 4u, kind == Kind::kAllgather || kind == Kind::kGather) << KindName(kind);
    EXPECT_EQ(RecvCount(spec, 3) == 4u, kind == Kind::kReduceScatter || kind == Kind::kScatter) << KindName(kind);
  }
}

TEST(Messages, SenderAndReceiverSeeTheSamePairs) {
  for (const Kind kind : {Kind::kSendrecv, Kind::kPingpong}) {
    for (const int nranks : {1, 2, 3, 4, 5}) {
      for (int rank = 0; rank < nranks; ++rank) {
        const int receiver = ReceiverOf(kind, rank, nranks);
        EXPECT_EQ(SenderTo(kind, receiver, nranks), rank) << KindName(kind) << " of " << nranks;
        if (kind == Kind::kSendrecv) continue;
        EXPECT_EQ(ReceiverOf(kind, receiver, nranks), rank) << nranks;
      }
    }
  }
  EXPECT_EQ(ReceiverOf(Kind::kPingpong, 2, 4), 3);
  EXPECT_EQ(ReceiverOf(Kind::kPingpong, 4, 5), 4);  // Nobody is left for it.
}

TEST(Reports, CallsWithoutAnInPlaceFormHaveOneForm) {
  Row row = SampleRow();
  for (const Kind kind : {Kind::kAlltoall, Kind::kSendrecv, Kind::kPingpong, Kind::kBarrier}) {
    row.spec.kind = kind;
    EXPECT_EQ(Written(TableReport, row).find("in place"), std::string::npos) << KindName(kind);
    EXPECT_EQ(Written(CsvReport, row).find("in_place"), std::string::npos) << KindName(kind);
    EXPECT_EQ(Written(JsonReport, row).find("in_place"), std::string::npos) << KindName(kind);
  }
}

TEST(JsonReport, HoldsConfigMachineAndRows) {
  const auto json = nlohmann::json::parse(Written(JsonReport, SampleRow()));
  EXPECT_EQ(json["machine"]["ranks"], 4);
  EXPECT_EQ(json["machine"]["cpu_model"], "a \"CPU\"");
  EXPECT_EQ(json["machine"]["pigeons"], 2);
  EXPECT_EQ(json["machine"]["sealed"], "required");
  EXPECT_EQ(json["wrong"], 3);
  const auto& row = json["results"][0];
  EXPECT_EQ(row["collective"], "reduce");
  EXPECT_EQ(row["type"], "bfloat16");
  EXPECT_EQ(row["op"], "max");
  EXPECT_EQ(row["root"], 1);
  EXPECT_EQ(row["mode"], "async");
  EXPECT_EQ(row["calls"], 4);
  EXPECT_EQ(json["config"]["modes"], nlohmann::json::array({"blocking"}));
  EXPECT_EQ(row["in_place"]["wrong"], 3);
  EXPECT_DOUBLE_EQ(row["out_of_place"]["limit_percent"].get<double>(), 50);
}

TEST(JsonReport, ARunThatFailedKeepsItsRowsAndSaysWhy) {
  std::ostringstream out;
  const std::unique_ptr<Report> report = JsonReport(out);
  report->Begin(Options(), Machine());
  report->Add(SampleRow());
  report->Fail("rank 1 died");
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["results"].size(), 1u);
  EXPECT_EQ(json["error"], "rank 1 died");
  EXPECT_FALSE(json.contains("wrong"));
}

TEST(Reports, FilesHaveNoShareOfTheLimitWhereTheTableHasNone) {
  for (const int cores : {2, 4}) {
    const auto written = [cores](std::unique_ptr<Report> (*make)(std::ostream&)) {
      Machine machine;
      machine.ranks = 4;
      machine.cores_online = cores;
      std::ostringstream out;
      const std::unique_ptr<Report> report = make(out);
      report->Begin(Options(), machine);
      report->Add(SampleRow());
      report->End(0);
      return out.str();
    };
    const auto form = nlohmann::json::parse(written(JsonReport))["results"][0]["out_of_place"];
    EXPECT_EQ(form["limit_percent"], cores == 2 ? nlohmann::json() : nlohmann::json(50.0));
    EXPECT_EQ(written(CsvReport).find(",50.0,") == std::string::npos, cores == 2) << written(CsvReport);
  }
}

TEST(CsvReport, HasAsManyFieldsAsNames) {
  std::istringstream lines(Written(CsvReport, SampleRow()));
  std::string head, out, in;
  std::getline(lines, head);
  std::getline(lines, out);
  std::getline(lines, in);
  const auto fields = [](const std::string& line) { return std::count(line.begin(), line.end(), ',') + 1; };
  EXPECT_EQ(fields(head), fields(out));
  EXPECT_EQ(fields(head), fields(in));
  EXPECT_EQ(in.substr(in.size() - 13), ",3,async,4,,,") << in;
}

Row OverlapRow() {
  Row row = SampleRow();
  row.mode = Mode::kOverlap;
  row.out.timing.median_us = 15;
  row.out.alone_us = 8;
  row.out.computing_us = 9;  // 8 + 9 - 15 of 8 are hidden.
  row.in = row.out;
  row.in.timing.median_us = 18;  // More than one after the other, by 1 of 8.
  return row;
}

TEST(Reports, SayHowMuchOfACallComputingHid) {
  const auto json = nlohmann::json::parse(Written(JsonReport, OverlapRow()));
  EXPECT_DOUBLE_EQ(json["results"][0]["out_of_place"]["overlap_percent"].get<double>(), 25);
  EXPECT_DOUBLE_EQ(json["results"][0]["in_place"]["overlap_percent"].get<double>(), -12.5);
  EXPECT_NE(Written(CsvReport, OverlapRow()).find(",overlap,4,8,9,25\n"), std::string::npos);
  std::ostringstream out;
  Options options;
  options.modes = {Mode::kAsync, Mode::kOverlap};
  const std::unique_ptr<Report> report = TableReport(out);
  report->Begin(options, Machine());
  report->Add(OverlapRow());
  EXPECT_NE(out.str().find("#wrong ovl% | time"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("   25 |"), std::string::npos) << out.str();
}

TEST(TableReport, ShowsUncheckedResultsAsUnchecked) {
  Row row = SampleRow();
  row.out.wrong = row.in.wrong = -1;
  row.limit_us = 0;
  const std::string table = Written(TableReport, row);
  EXPECT_NE(table.find("1K         512 bfloat16   max"), std::string::npos) << table;
  EXPECT_NE(table.find("-      -"), std::string::npos) << table;
}

TEST(TableReport, NamesTheModeUnlessAllCallsAreBlocking) {
  EXPECT_EQ(Written(TableReport, SampleRow()).find(" mode"), std::string::npos);
  std::ostringstream out;
  const std::unique_ptr<Report> report = TableReport(out);
  Options options;
  options.modes = {Mode::kBlocking, Mode::kAsync};
  options.async_calls = 4;
  report->Begin(options, Machine());
  report->Add(SampleRow());
  EXPECT_NE(out.str().find("# times are of one call; 4 calls in a row (blocking)"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("op root     mode |"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("max    1    async |"), std::string::npos) << out.str();
}

std::string Head(const Machine& machine) {
  std::ostringstream out;
  TableReport(out)->Begin(Options(), machine);
  return out.str();
}

TEST(TableReport, ABoundRankIsNotShownAsAShortageOfCores) {
  Machine machine;
  machine.cpu_model = "a CPU";
  machine.ranks = 4;
  machine.hosts = 1;
  machine.cores = machine.cores_online = 8;
  EXPECT_NE(Head(machine).find("# 4 ranks on 1 host with 8 cores, a CPU\n"), std::string::npos) << Head(machine);
  machine.cores = 1;
  EXPECT_NE(Head(machine).find("# 4 ranks on 1 host with 8 cores, of which rank 0 may use 1, a CPU\n"),
            std::string::npos)
      << Head(machine);
  machine.hosts = 2;
  EXPECT_NE(Head(machine).find("# 4 ranks on 2 hosts, that of rank 0 with 8 cores, of which rank 0 may use 1, a CPU\n"),
            std::string::npos)
      << Head(machine);
}

TEST(TableReport, RanksThatTakeTurnsOnCoresHaveNoShareOfTheLimit) {
  Machine machine;
  machine.ranks = 4;
  machine.hosts = 1;
  for (const int cores : {2, 4}) {
    machine.cores_online = cores;
    std::ostringstream out;
    const std::unique_ptr<Report> report = TableReport(out);
    report->Begin(Options(), machine);
    report->Add(SampleRow());
    EXPECT_EQ(out.str().find("# lim% is not known (-): ranks take turns") != std::string::npos, cores == 2)
        << out.str();
    EXPECT_NE(out.str().find(cores == 2 ? "    -      0 |" : "   50      0 |"), std::string::npos) << out.str();
  }
  machine.cores_online = 2;
  machine.hosts = 2;
  EXPECT_EQ(Head(machine).find("not known"), std::string::npos) << Head(machine);
}

TEST(TableReport, SaysThatAGroupHasOneCall) {
  for (const int calls : {1, 4}) {
    std::ostringstream out;
    Options options;
    options.modes = {Mode::kBlocking, Mode::kGroup};
    options.async_calls = calls;
    TableReport(out)->Begin(options, Machine());
    EXPECT_EQ(out.str().find("# group: of one call") != std::string::npos, calls == 1) << out.str();
  }
}

TEST(TableReport, NamesAlgorithmAndTuningThatAreNotTheDefaults) {
  Machine machine;
  machine.algorithm = "auto";
  machine.tuning = "nominal";
  EXPECT_EQ(Head(machine).find("ANNULUS_"), std::string::npos) << Head(machine);
  machine.algorithm = "tree";
  machine.tuning = "measured";
  EXPECT_NE(Head(machine).find("# ANNULUS_ALGORITHM: tree, where it is possible\n# ANNULUS_TUNING: measured\n"),
            std::string::npos)
      << Head(machine);
}

TEST(SizeText, ReadsAsItIsWritten) {
  for (const size_t bytes : {size_t{8}, size_t{1000}, size_t{1024}, size_t{3} << 20, size_t{1} << 31}) {
    size_t read = 0;
    ASSERT_TRUE(ParseSize(SizeText(bytes), &read).ok());
    EXPECT_EQ(read, bytes);
  }
}

}  // namespace
}  // namespace annulus::perf
