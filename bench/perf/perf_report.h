// Reports: annulus-perf's results as a table for people, and as CSV and JSON for programs.
//
// What is written is listed here field by field. Of the environment there are only the named settings, and nothing
// tells the host apart from another of its kind: no names, addresses, paths or keys.
//
// Threads: one thread at a time.
#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "bench/perf/perf_buffers.h"
#include "bench/perf/perf_calls.h"
#include "bench/perf/perf_collective.h"
#include "bench/perf/perf_measure.h"
#include "bench/perf/perf_options.h"

namespace annulus::perf {

// Where and how the run took place.
struct Machine {
  std::string library_version;
  std::string cpu_model;
  int cores = 0;         // That rank 0 may run on; 0 when the system does not tell.
  int cores_online = 0;  // Cores of rank 0's host.
  int ranks = 0;
  int hosts = 0;
  std::string transport;  // The setting.
  std::string links;      // What came of it.
  std::string limit;      // What is measured as the limit.
  std::string device;     // The GPU that has the buffers and how it works; "": host memory.
  double latency_us = 0;  // Time of the limit's 8-byte exchange; 0 when unknown.
  int64_t slice_bytes = 0;
  int32_t channels = 0;
  int32_t checksum = 0;
  int64_t small_bytes = 0;
  std::string algorithm;  // The settings.
  std::string tuning;
  // Names and values of the settings on which the transports' costs depend.
  std::vector<std::pair<std::string, std::string>> cost_settings;

  // Whether there are more ranks than cores, if all hosts have as many as that of rank 0.
  bool HasFewCores() const { return cores_online > 0 && ranks > cores_online * std::max(hosts, 1); }
};

// One form, out of place or in place, of a row.
struct FormResult {
  Timing timing;
  double algbw = 0;    // GB/s: size / median time.
  double busbw = 0;    // GB/s: algbw x BusFactor.
  int64_t wrong = -1;  // -1: not checked.
  // Mode::kOverlap: the times of the calls without computing and of the computing without calls, each for one call. The
  // timing is that of both together.
  double alone_us = 0;
  double computing_us = 0;
  // How much of the calls' own time the computing hid, in percent of it. Less than 0: both together took longer than
  // one after the other.
  double Overlap() const {
    return alone_us > 0 ? std::min((alone_us + computing_us - timing.median_us) / alone_us * 100, 100.0) : 0;
  }
};

struct Row {
  CallSpec spec;
  Mode mode = Mode::kBlocking;
  int calls = 1;  // Number of calls in a pass. Times are of one call.
  size_t bytes = 0;
  FormResult out;
  FormResult in;
  double limit_us = 0;  // 0: none.
  // The least time over the time of the call, in percent; 0 when there is no limit.
  double OutShare() const { return limit_us / out.timing.median_us * 100; }
  double InShare() const { return limit_us / in.timing.median_us * 100; }
};

class Report {
 public:
  virtual ~Report() = default;
  virtual void Begin(const Options& options, const Machine& machine) = 0;
  virtual void Add(const Row& row) = 0;
  virtual void End(int64_t wrong) = 0;
  // In place of End, when the run failed after any number of rows: `why` says how.
  virtual void Fail(const std::string& why) = 0;
};

std::unique_ptr<Report> TableReport(std::ostream& out);
std::unique_ptr<Report> CsvReport(std::ostream& out);
std::unique_ptr<Report> JsonReport(std::ostream& out);

// The machine's own facts: CPU model and cores.
void FillCpuFacts(Machine* machine);

// "8", "1K", "4M": as ParseSize reads it; plain bytes when it is no whole unit.
std::string SizeText(size_t bytes);

}  // namespace annulus::perf
