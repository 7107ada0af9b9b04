// Options: annulus-perf's command line.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/perf/perf_calls.h"
#include "bench/perf/perf_collective.h"

namespace annulus::perf {

struct Options {
  size_t min_bytes = 8;
  size_t max_bytes = size_t{64} << 20;
  double factor = 4;      // Each size is the last one times this,
  size_t step_bytes = 0;  // or plus this, when it is not 0.
  int iterations = 0;     // Timed calls for each size and form; 0 = as many as fit `seconds`.
  int warmup = 5;
  double seconds = 0.25;  // Aimed-at time of each size and form, when `iterations` is 0.
  int root = 0;
  int async_calls = 1;  // Calls of a pass: in flight at once, in one group, or one after the other.
  bool check = true;
  bool limit = true;
  bool local_register = false;
  bool has_counts = false;  // Collectives in their form with an array of counts.
  int device = -1;          // Number of the GPU that has the buffers; -1: host memory.
  int corrupt = 0;          // Result elements that rank 0 spoils before its check, to show that the check sees them.
  std::vector<Kind> kinds = {Kind::kAllreduce};
  std::vector<Mode> modes = {Mode::kBlocking};
  std::vector<annulus_type_t> types = {ANNULUS_FLOAT32};
  std::vector<annulus_op_t> ops = {ANNULUS_SUM};
  bool explain = false;
  int ranks = 0;  // With `explain`: number of ranks of an imagined job on `hosts` hosts; 0 = this job.
  int hosts = 1;
  std::string json_path;
  std::string csv_path;
};

// Parses sizes such as 8, 1K, 4M and 1G (units of 1024).
Status ParseSize(std::string_view text, size_t* bytes);

// What the program does after its command line was read.
struct ParseResult {
  bool run = false;   // false: leave with `exit_code`; help or the error has been written.
  int exit_code = 0;  // 0 after --help, kUsageExit after a wrong argument.
};
inline constexpr int kUsageExit = 2;

ParseResult ParseOptions(int argc, const char* const* argv, Options* options, std::ostream& out, std::ostream& err);

// The sizes that the options ask for, in order; never empty.
std::vector<size_t> Sizes(const Options& options);

}  // namespace annulus::perf
