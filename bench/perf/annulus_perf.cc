// annulus-perf: time and bandwidth of Annulus's collectives, with every result checked.
//
// Each rank is a process that a launcher started; rank 0 alone reports. Started without a launcher it measures one
// rank.
//
// Threads: one.
#include <annulus.h>

#include <cerrno>
#include <fstream>
#include <iostream>
#include <optional>

#include "bench/perf/perf_explain.h"
#include "bench/perf/perf_gpu.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_options.h"
#include "bench/perf/perf_report.h"
#include "bench/perf/perf_sweep.h"
#include "cuda_kernels/driver/driver.h"

namespace annulus::perf {
namespace {

constexpr int kFailureExit = 1;
constexpr int kWrongExit = 3;
constexpr char kDriver[] = "libcuda.so.1";

// `rank`: -1 where it is not known.
int Fail(int rank, const Status& status) {
  const std::string who = rank < 0 ? "" : "rank " + std::to_string(rank) + ": ";
  std::cerr << "annulus-perf: " + who + status.ToString() + "\n" << std::flush;
  return kFailureExit;
}

// Where rank 0 reports; of other ranks empty.
struct Files {
  std::ofstream json, csv;
  std::vector<std::unique_ptr<Report>> reports;
};

// Opens the file that `path` names, if any, and adds its report.
Status AddFile(const std::string& path, std::unique_ptr<Report> (*make)(std::ostream&), std::ofstream& file,
               std::vector<std::unique_ptr<Report>>* reports) {
  if (path.empty()) return Status();
  file.open(path, std::ios::trunc);
  if (!file) return Status::System("cannot write " + path, errno);
  reports->push_back(make(file));
  return Status();
}

void RunAlone(annulus_config_t* config) {
  std::cerr << "annulus-perf: no launcher started this process, so it measures one rank, which has nobody to talk to.\n"
               "annulus-perf: to measure 4 ranks: annulus-run -np 4 annulus-perf\n";
  config->rank = 0;
  config->size = 1;
}

// Collective, before anything that takes time: rank 0 opens the files and tells the others whether it could, so that
// they leave too: without words, and with 0, so that launchers name rank 0 as the one that failed. Returns false, and
// the exit status, when the run is over.
bool OpenFiles(Group& group, const Options& options, Files* files, int* exit_code) {
  *exit_code = 0;
  Status opened;
  if (group.rank() == 0) {
    files->reports.push_back(TableReport(std::cout));
    opened = AddFile(options.json_path, JsonReport, files->json, &files->reports);
    if (opened.ok()) opened = AddFile(options.csv_path, CsvReport, files->csv, &files->reports);
    if (!opened.ok()) *exit_code = Fail(0, opened);
  }
  int64_t failed = opened.ok() ? 0 : 1;
  if (const Status told = group.Sum(std::span(&failed, 1)); !told.ok()) {
    *exit_code = Fail(group.rank(), told);
    return false;
  }
  return failed == 0;
}

// `rank`: -1 where it is not known.
int Run(Options options, const annulus_config_t& config, int rank) {
  std::unique_ptr<Gpu> gpu;
  if (options.device >= 0) {
    if (const Status status = Gpu::Open(kDriver, options.device, &gpu); !status.ok()) return Fail(rank, status);
  }
  std::unique_ptr<Group> group;
  {
    // A communicator takes network devices near the GPU that its thread uses.
    std::optional<cuda::ScopedContext> scope;
    if (gpu != nullptr) scope.emplace(gpu->driver(), gpu->context());
    if (const Status status = Group::Join(config, &group); !status.ok()) return Fail(rank, status);
  }
  if (options.root >= group->size()) {
    if (group->rank() == 0) {
      std::cerr << "annulus-perf: -r: there is no rank " << options.root << ", only 0 to " << group->size() - 1 << "\n";
    }
    return kUsageExit;
  }
  if (options.explain) {
    const Status status = ExplainGroup(options, *group, std::cout);
    return status.ok() ? 0 : Fail(group->rank(), status);
  }
  Files files;
  if (int exit_code = 0; !OpenFiles(*group, options, &files, &exit_code)) return exit_code;
  int64_t wrong = 0;
  if (const Status status = RunSweep(*group, options, config, gpu.get(), files.reports, &wrong); !status.ok()) {
    return Fail(group->rank(), status);
  }
  if (group->rank() == 0 && (!std::cout || !files.json || !files.csv)) {
    return Fail(0, Status(Code::kSystem, "the results could not be written"));
  }
  return wrong == 0 ? 0 : kWrongExit;
}

int Main(int argc, char** argv) {
  annulus_config_t config{};
  annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER);
  std::string rank = "-1";
  std::string size = "-1";
  Status known = ReadSetting(config, "rank", &rank);
  if (known.ok()) known = ReadSetting(config, "size", &size);
  // Every rank has the same arguments; one of them speaks.
  std::ostream silent(nullptr);
  const bool speaks = !known.ok() || rank == "-1" || rank == "0";
  Options options;
  const ParseResult parsed =
      ParseOptions(argc, argv, &options, speaks ? std::cout : silent, speaks ? std::cerr : silent);
  if (!parsed.run) return Leave(parsed.exit_code, speaks);
  if (!known.ok()) return Fail(-1, known);
  if (options.ranks > 0) {
    const Status explained = ExplainRanks(options, speaks ? std::cout : silent);
    if (!explained.ok() && speaks) std::cerr << "annulus-perf: " << explained.message() << "\n";
    return Leave(explained.ok() ? 0 : kUsageExit, speaks);
  }
  if (rank == "-1" && size == "-1") RunAlone(&config);
  return Run(std::move(options), config, std::stoi(rank));
}

}  // namespace
}  // namespace annulus::perf

int main(int argc, char** argv) { return annulus::perf::Main(argc, argv); }
