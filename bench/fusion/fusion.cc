// fusion: time of one training step's gradient sums, for the tensors of real models, in four ways.
//
// The ways take turns, round by round, so that what else the machine does meets all of them alike. Every step sums
// fresh gradients, begins on all ranks together, counts as long as the slowest rank took, and has its results checked;
// filling and checking are not timed.
//
// Threads: one.
#include <annulus.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "base/clock.h"
#include "bench/fusion/gradients.h"
#include "bench/fusion/model.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_measure.h"

namespace annulus::fusion {
namespace {

constexpr int kFailureExit = 1;
constexpr int kUsageExit = 2;
constexpr int kWrongExit = 3;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMaxLimitMib = size_t{1} << 20;  // 1 TiB.

struct Options {
  std::vector<std::string> models;
  std::vector<size_t> limits_mib = {4, 32, 0};
  int rounds = 15;
  int warmup = 2;
};

struct Result {
  std::array<perf::Timing, kAllWays.size()> timing;
  int64_t wrong = 0;
};

// The file's name without folder and ending.
std::string NameOf(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  return name.substr(0, name.rfind('.'));
}

Status TimeStep(Way way, Gradients& gradients, perf::Group& group, double* seconds, int64_t* wrong) {
  gradients.Fill(way);
  ANNULUS_RETURN_IF_ERROR(group.Barrier());
  const Nanoseconds start = Now();
  ANNULUS_RETURN_IF_ERROR(gradients.Sum(way, group));
  *seconds = static_cast<double>(Now() - start) * 1e-9;
  *wrong += gradients.CountWrong(way);
  return Status();
}

Status MeasureModel(const Options& options, const std::vector<Tensor>& tensors, perf::Group& group, Result* result) {
  std::unique_ptr<Gradients> gradients;
  ANNULUS_RETURN_IF_ERROR(Gradients::Create(tensors, group, &gradients));
  std::array<std::vector<double>, kAllWays.size()> samples;
  for (int round = 0; round < options.warmup + options.rounds; ++round) {
    std::array<double, kAllWays.size()> seconds{};
    for (size_t turn = 0; turn < kAllWays.size(); ++turn) {
      // Another way begins each round: none always follows the same one.
      const size_t i = (turn + static_cast<size_t>(round)) % kAllWays.size();
      ANNULUS_RETURN_IF_ERROR(TimeStep(kAllWays[i], *gradients, group, &seconds[i], &result->wrong));
    }
    ANNULUS_RETURN_IF_ERROR(group.Max(seconds));
    if (round < options.warmup) continue;
    for (size_t i = 0; i < kAllWays.size(); ++i) samples[i].push_back(seconds[i]);
  }
  for (size_t i = 0; i < kAllWays.size(); ++i) result->timing[i] = perf::Summarise(std::move(samples[i]), 1);
  return group.Sum({&result->wrong, 1});
}

void PrintHead(const Options& options, const perf::Group& group) {
  std::printf("# fusion, Annulus %s: %d ranks; float32 gradients summed in place, %d rounds\n", annulus_version(),
              group.size(), options.rounds);
  std::printf(
      "# blocking: an allreduce per tensor. async: the same, all started, then waited for. group: the same in a\n");
  std::printf(
      "# group. flat: one allreduce of as many elements, the bound. Median ms of a step on the slowest rank, and\n");
  std::printf("# how many times the bound's that is. #wrong = wrong elements on all ranks, of all steps.\n");
  std::printf(
      "# model        tensors        MiB | blocking    async    group     flat | blocking  async  group | #wrong\n");
}

void PrintRow(const std::string& model, size_t tensors, size_t elements, const Result& result) {
  std::array<double, kAllWays.size()> ms{};
  for (size_t i = 0; i < ms.size(); ++i) ms[i] = result.timing[i].median_us * 1e-3;
  const double flat = ms[static_cast<size_t>(Way::kFlat)];
  std::printf("%-14s %7zu %10.2f | %8.3f %8.3f %8.3f %8.3f | %8.2f %6.2f %6.2f | %6lld\n", model.c_str(), tensors,
              static_cast<double>(elements * sizeof(float)) / kMiB, ms[0], ms[1], ms[2], flat, ms[0] / flat,
              ms[1] / flat, ms[2] / flat, static_cast<long long>(result.wrong));
  std::fflush(stdout);
}

Status RunAll(const Options& options, const std::vector<std::vector<Tensor>>& models, perf::Group& group,
              int64_t* wrong) {
  if (group.rank() == 0) PrintHead(options, group);
  for (size_t i = 0; i < models.size(); ++i) {
    for (const size_t mib : options.limits_mib) {
      const std::vector<Tensor> tensors = mib == 0 ? models[i] : Cut(models[i], mib * kMiB / sizeof(float));
      if (tensors.empty()) return Status::Invalid("--limit-mib " + std::to_string(mib) + ": no tensor fits");
      Result result;
      ANNULUS_RETURN_IF_ERROR(MeasureModel(options, tensors, group, &result));
      *wrong += result.wrong;
      if (group.rank() == 0) PrintRow(NameOf(options.models[i]), tensors.size(), TotalElements(tensors), result);
    }
  }
  return Status();
}

// True to run; otherwise *exit_code says how to leave.
bool ParseOptions(int argc, char** argv, bool speaks, Options* options, int* exit_code) {
  CLI::App app(
      "fusion: time of a training step's gradient sums for the tensors of real models. Start it on every rank:\n"
      "  annulus-run -np 4 fusion bench/fusion/resnet50.txt bench/fusion/bert_large.txt\n"
      "Exit status: 0 all is well, 1 a call failed, 2 a wrong argument, 3 wrong results.",
      "fusion");
  app.option_defaults()->always_capture_default();
  app.add_option("models", options->models, "files with a line for each tensor: its name and dimensions")->required();
  app.add_option("--limit-mib", options->limits_mib,
                 "MiB of gradients: tensors that go beyond are left out; 0 = the whole model; several with commas")
      ->delimiter(',')
      ->check(CLI::Range(size_t{0}, kMaxLimitMib));
  app.add_option("--rounds", options->rounds, "timed steps of each way")->check(CLI::Range(1, 100'000));
  app.add_option("--warmup", options->warmup, "rounds before, untimed")->check(CLI::Range(0, 1000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostream silent(nullptr);
    app.exit(error, speaks ? std::cout : silent, speaks ? std::cerr : silent);
    *exit_code = error.get_exit_code() == 0 ? 0 : kUsageExit;
    return false;
  }
  return true;
}

int Fail(const Status& status, int code) {
  std::cerr << "fusion: " << status.ToString() << std::endl;
  return code;
}

int Main(int argc, char** argv) {
  annulus_config_t config{};
  annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER);
  std::string rank;
  const Status known = perf::ReadSetting(config, "rank", &rank);
  // Every rank has the same arguments and files; one of them speaks.
  const bool speaks = !known.ok() || rank == "-1" || rank == "0";
  Options options;
  int exit_code = 0;
  if (!ParseOptions(argc, argv, speaks, &options, &exit_code)) return perf::Leave(exit_code, speaks);
  if (!known.ok()) return Fail(known, kFailureExit);
  if (rank == "-1") {
    return Fail(Status::Invalid("no launcher started this process; use annulus-run -np 4 fusion MODEL..."), kUsageExit);
  }
  std::vector<std::vector<Tensor>> models;
  for (const std::string& path : options.models) {
    std::ifstream file(path);
    const Status read = ReadModel(file, path, &models.emplace_back());
    if (!read.ok()) return speaks ? Fail(read, kUsageExit) : perf::Leave(kUsageExit, false);
  }
  std::unique_ptr<perf::Group> group;
  if (const Status joined = perf::Group::Join(config, &group); !joined.ok()) return Fail(joined, kFailureExit);
  int64_t wrong = 0;
  if (const Status ran = RunAll(options, models, *group, &wrong); !ran.ok()) return Fail(ran, kFailureExit);
  return wrong == 0 ? 0 : kWrongExit;
}

}  // namespace
}  // namespace annulus::fusion

int main(int argc, char** argv) { return annulus::fusion::Main(argc, argv); }
