// The command line: CLI11 splits it, this file says what the words mean and what is wrong with them.
//
// Threads: see perf_options.h.
#include "bench/perf/perf_options.h"

#include <annulus.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <ostream>
#include <sstream>
#include <type_traits>
#include <utility>

namespace annulus::perf {
namespace {

// A sweep of more sizes than this is a mistake, such as -i 1 over gigabytes.
constexpr size_t kMaxSizes = 10000;
constexpr int kMostRanks = 65'536;  // With --explain, ranks need not exist; those of a job are fewer.
constexpr int kMostGpus = 1024;

// The words as given, before they are understood.
struct Words {
  std::string min = "8", max = "64M", step = "0";
  std::vector<std::string> kinds = {"allreduce"}, types = {"float32"}, ops = {"sum"}, modes = {"auto"};
  int check = 1;
  int limit = 1;
  int local_register = 0;
  bool version = false;
};

template <typename Item, size_t kItems, typename Parse, typename Name>
Status ParseList(const char* option, const std::vector<std::string>& words, const std::array<Item, kItems>& all,
                 Parse parse, Name name, std::vector<Item>* items) {
  items->clear();
  bool has_all = false;
  for (const std::string& word : words) {
    has_all = has_all || word == "all";
    if (word == "all") continue;
    const std::optional<Item> item = parse(word);
    if (!item) {
      std::string allowed;
      for (const Item& each : all) allowed += std::string(name(each)) + ", ";
      return Status::Invalid(std::string(option) + ": '" + word + "' is unknown; use " + allowed + "or all");
    }
    items->push_back(*item);
  }
  if (has_all) items->assign(all.begin(), all.end());
  return Status();
}

// The numbers from min to max, in words of people: CLI's own ranges show the largest double in full.
template <typename Number>
CLI::Validator From(Number min, Number max) {
  std::ostringstream range;
  range << min << " to " << max;
  const std::string allowed = (std::is_integral_v<Number> ? "a whole number from " : "a number from ") + range.str();
  const auto check = [min, max, allowed](const std::string& word) {
    Number number{};
    const bool is_number = CLI::detail::lexical_cast(word, number);
    return is_number && number >= min && number <= max ? "" : "'" + word + "' is not " + allowed;
  };
  return {check, range.str()};
}

Status ParseSizeOption(const char* option, const std::string& word, size_t* bytes) {
  const Status status = ParseSize(word, bytes);
  return status.ok() ? status : Status::Invalid(std::string(option) + ": " + status.message());
}

Status UnderstandModes(const Words& words, Options* options) {
  const bool has_auto = std::ranges::find(words.modes, "auto") != words.modes.end();
  if (has_auto && words.modes.size() > 1) return Status::Invalid("--mode: auto stands alone");
  if (has_auto) {
    options->modes = {options->async_calls > 1 ? Mode::kAsync : Mode::kBlocking};
  } else {
    ANNULUS_RETURN_IF_ERROR(ParseList("--mode", words.modes, kAllModes, ParseMode, ModeName, &options->modes));
  }
  const auto has_rows = [options](Kind kind) {
    return std::ranges::any_of(options->modes, [kind](Mode mode) { return HasMode(kind, mode); });
  };
  if (std::ranges::any_of(options->kinds, has_rows)) return Status();
  return Status::Invalid(std::string("--mode: ") + KindName(options->kinds.front()) +
                         " has no such mode; its answers wait for messages");
}

Status CheckCounts(const Options& options) {
  if (!options.has_counts) return Status();
  if (options.explain) return Status::Invalid("--counts: does not go with --explain, which knows of no counts");
  for (const Kind kind : options.kinds) {
    if (IsSplit(kind)) continue;
    return Status::Invalid(
        std::string("--counts: ") + KindName(kind) +
        " has no such form; name others with --collective: reduce_scatter, allgather, gather, scatter or "
        "alltoall");
  }
  return Status();
}

Status Understand(const Words& words, Options* options) {
  ANNULUS_RETURN_IF_ERROR(ParseSizeOption("-b", words.min, &options->min_bytes));
  ANNULUS_RETURN_IF_ERROR(ParseSizeOption("-e", words.max, &options->max_bytes));
  ANNULUS_RETURN_IF_ERROR(ParseSizeOption("-i", words.step, &options->step_bytes));
  ANNULUS_RETURN_IF_ERROR(ParseList("--collective", words.kinds, kAllKinds, ParseKind, KindName, &options->kinds));
  ANNULUS_RETURN_IF_ERROR(ParseList("-d", words.types, kAllTypes, ParseType, TypeName, &options->types));
  ANNULUS_RETURN_IF_ERROR(ParseList("-o", words.ops, kAllOps, ParseOp, OpName, &options->ops));
  ANNULUS_RETURN_IF_ERROR(UnderstandModes(words, options));
  ANNULUS_RETURN_IF_ERROR(CheckCounts(*options));
  if (options->min_bytes == 0) return Status::Invalid("-b: the smallest size is 1 byte");
  if (options->max_bytes < options->min_bytes) return Status::Invalid("-e: less than -b; give a larger end");
  if (options->step_bytes == 0 && !(options->factor > 1)) {
    return Status::Invalid("-f: the factor must be more than 1, or no size would follow the first");
  }
  if (Sizes(*options).size() > kMaxSizes) {
    return Status::Invalid("-i: more than " + std::to_string(kMaxSizes) + " sizes; use a larger step");
  }
  if (options->ranks > 0 && !options->explain) return Status::Invalid("--ranks: goes with --explain only");
  if (options->hosts > std::max(1, options->ranks)) return Status::Invalid("--hosts: more than --ranks");
  if (options->ranks > 0 && options->root >= options->ranks) {
    return Status::Invalid("-r: there is no rank " + std::to_string(options->root) + ", only 0 to " +
                           std::to_string(options->ranks - 1));
  }
  for (const auto& [option, path] : {std::pair("--json", options->json_path), std::pair("--csv", options->csv_path)}) {
    if (!options->explain || path.empty()) continue;
    return Status::Invalid(std::string(option) + ": does not go with --explain, which measures nothing");
  }
  if (options->device >= 0 && words.local_register != 0)
    return Status::Invalid("-R: registered memory is host memory; it does not go with --device");
  if (options->device >= 0 && options->ranks > 0)
    return Status::Invalid("--device: does not go with --ranks, since ranks that need not exist have no GPU");
  if (!options->json_path.empty() && options->json_path == options->csv_path)
    return Status::Invalid("--csv: is the file of --json too; give each a file of its own");
  if (options->corrupt > 0 && words.check == 0)
    return Status::Invalid("--corrupt: does not go with -c 0, which checks nothing");
  options->check = words.check != 0;
  options->limit = words.limit != 0;
  options->local_register = words.local_register != 0;
  return Status();
}

void Declare(CLI::App& app, Words& words, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("-b,--minbytes", words.min, "smallest size, such as 8, 1K, 4M, 1G");
  app.add_option("-e,--maxbytes", words.max, "largest size");
  app.add_option("-f,--stepfactor", options.factor, "each size is the last one times this")->check(From(0.0, 1e12));
  app.add_option("-i,--stepbytes", words.step, "or plus this, when it is not 0");
  app.add_option("-n,--iters", options.iterations,
                 "timed calls per size and form, or passes of -m calls each; 0 = as many as fit --seconds")
      ->check(From(0, 100'000'000));
  app.add_option("-w,--warmup_iters", options.warmup, "untimed calls before each measurement, at least 1")
      ->check(From(1, 1'000'000));
  app.add_option("--seconds", options.seconds, "time to aim at for each size and form, when -n is 0")
      ->check(From(0.001, 3600.0));
  app.add_option("-o,--op", words.ops, "sum, prod, min, max, avg or all; several with commas")->delimiter(',');
  app.add_option(
         "-d,--datatype", words.types,
         "int8, uint8, int16, uint16, int32, uint32, int64, uint64, float8_e4m3, float8_e5m2, float16, bfloat16, "
         "float32, float64 or all")
      ->delimiter(',');
  app.add_option(
         "--collective", words.kinds,
         "allreduce, reduce_scatter, allgather, broadcast, reduce, gather, scatter, alltoall, sendrecv (to the "
         "next rank, from the previous one), pingpong (a message and its answer; half the time), barrier or all")
      ->delimiter(',');
  app.add_option("-r,--root", options.root, "root of broadcast, reduce, gather and scatter")
      ->check(From(0, kMostRanks - 1));
  app.add_option("-c,--check", words.check, "1 = check every element of the results")->check(From(0, 1));
  app.add_option(
         "-m,--async", options.async_calls,
         "calls of a pass: in flight at once, in one group or one after the other; a group of 1 is no more than "
         "its call, so give groups several")
      ->check(From(1, 1024));
  app.add_option(
         "--mode", words.modes,
         "blocking (one call after the other), async (all started, then waited for), group (all in one submit), "
         "overlap (all started, then computing for as long as they take alone, then waited for) or all; auto = "
         "blocking, or async if -m is more than 1")
      ->delimiter(',');
  app.add_option("-R,--local_register", words.local_register,
                 "1 = buffers in registered memory, which peers read in place")
      ->check(From(0, 1));
  app.add_flag("--counts", options.has_counts,
               "use the functions with arrays of counts, such as allgatherv for allgather; the counts are all equal");
  app.add_option("--device", options.device, "buffers on this GPU, as CUDA counts them; -1 = in host memory")
      ->check(From(-1, kMostGpus - 1));
  app.add_option("--limit", words.limit, "1 = measure the links' limit too")->check(From(0, 1));
  app.add_flag("--explain", options.explain, "say how each call is done and why, in place of measuring it");
  app.add_option("--ranks", options.ranks, "with --explain: of so many ranks that need not exist; 0 = those that do")
      ->check(From(0, kMostRanks));
  app.add_option("--hosts", options.hosts, "with --ranks: on so many hosts, each rank with a core of its own")
      ->check(From(1, kMostRanks));
  app.add_flag("--version", words.version, "show the version and exit");
  app.add_option("--json", options.json_path, "also write the results as JSON to this file");
  app.add_option("--csv", options.csv_path, "also write the results as CSV to this file");
  app.add_option("--corrupt", options.corrupt, "spoil this many result elements on rank 0: the check must see them")
      ->check(From(0, 1'000'000));
}

}  // namespace

Status ParseSize(std::string_view text, size_t* bytes) {
  const Status wrong = Status::Invalid("'" + std::string(text) + "' is not a size; write 8, 1K, 4M or 1G");
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return wrong;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  int shift = 0;
  if (unit.size() > 1) return wrong;
  if (unit.size() == 1) {
    const size_t place = std::string_view("KMGkmg").find(unit[0]);
    if (place == std::string_view::npos) return wrong;
    shift = 10 * (static_cast<int>(place % 3) + 1);
  }
  if (number > (std::numeric_limits<size_t>::max() >> 1 >> shift)) return wrong;
  *bytes = number << shift;
  return Status();
}

ParseResult ParseOptions(int argc, const char* const* argv, Options* options, std::ostream& out, std::ostream& err) {
  CLI::App app(
      "annulus-perf: time and bandwidth of Annulus's collectives. Start it on every rank, for example\n"
      "  annulus-run -np 4 annulus-perf -b 1K -e 64M -f 4 --collective all\n"
      "Exit status: 0 all is well, 1 a collective failed, 2 a wrong argument, 3 wrong results.",
      "annulus-perf");
  Words words;
  Declare(app, words, *options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool help = error.get_exit_code() == 0;
    app.exit(error, out, err);
    return {false, help ? 0 : kUsageExit};
  }
  if (words.version) {
    out << "annulus-perf " << annulus_version() << "\n";
    return {false, 0};
  }
  if (const Status status = Understand(words, options); !status.ok()) {
    err << "annulus-perf: " << status.message() << "\n";
    return {false, kUsageExit};
  }
  return {true, 0};
}

std::vector<size_t> Sizes(const Options& options) {
  std::vector<size_t> sizes;
  for (size_t bytes = options.min_bytes; bytes <= options.max_bytes && sizes.size() <= kMaxSizes;) {
    sizes.push_back(bytes);
    const double next = options.step_bytes != 0 ? static_cast<double>(bytes) + static_cast<double>(options.step_bytes)
                                                : static_cast<double>(bytes) * options.factor;
    if (next > static_cast<double>(options.max_bytes)) break;
    bytes = std::max(bytes + 1, static_cast<size_t>(next));
  }
  return sizes;
}

}  // namespace annulus::perf
