// The table that people read, and the machine's facts above it.
//
// Threads: see perf_report.h.
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/cpus.h"
#include "bench/perf/perf_report.h"
#include "collectives/core/options.h"

namespace annulus::perf {
namespace {

[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

// Four significant digits where the width allows, so that nanoseconds and seconds fit one column.
std::string Micros(double us) {
  const int decimals = us < 10 ? 3 : us < 100 ? 2 : us < 1000 ? 1 : 0;
  return Format("%8.*f", decimals, us);
}

std::string Rate(double rate) { return Format("%7.*f", rate < 10 ? 3 : 2, rate); }

constexpr char kCallColumns[] = "#      size       count     type    op root";
constexpr char kModeColumn[] = "     mode";
constexpr char kFormColumns[] = " | time(us)      min      p99   algbw   busbw lim% #wrong";
constexpr char kOverlapColumn[] = " ovl%";

std::string Form(const FormResult& form, double share) {
  const std::string wrong = form.wrong < 0 ? "-" : std::to_string(form.wrong);
  const std::string limit = share > 0 ? Format("%4.0f", share) : "   -";
  return " | " + Micros(form.timing.median_us) + " " + Micros(form.timing.min_us) + " " + Micros(form.timing.p99_us) +
         " " + Rate(form.algbw) + " " + Rate(form.busbw) + " " + limit + Format(" %6s", wrong.c_str());
}

std::string Plural(int count, const char* noun) { return std::to_string(count) + " " + noun + (count == 1 ? "" : "s"); }

// A rank that its launcher bound to one core of many is not short of cores.
std::string CoresText(const Machine& machine) {
  std::string text = machine.hosts > 1 ? ", that of rank 0 with " : " with ";
  text += Plural(machine.cores_online, "core");
  if (machine.cores > 0 && machine.cores < machine.cores_online) {
    text += ", of which rank 0 may use " + std::to_string(machine.cores);
  }
  return text;
}

// Settings that change which algorithms are measured, where they are not the defaults.
std::string ChoiceText(const Machine& machine) {
  const auto is_set = [](const char* setting, const std::string& value) {
    return !value.empty() && value != DefaultText(SettingNamed(setting));
  };
  std::string text;
  if (is_set("algorithm", machine.algorithm)) {
    text += "# ANNULUS_ALGORITHM: " + machine.algorithm + ", where it is possible\n";
  }
  if (is_set("tuning", machine.tuning)) {
    text += "# ANNULUS_TUNING: " + machine.tuning + "\n";
  }
  return text;
}

class Table final : public Report {
 public:
  explicit Table(std::ostream& out) : out_(out) {}

  void Begin(const Options& options, const Machine& machine) override {
    out_ << "# annulus-perf, Annulus " << machine.library_version << "\n"
         << "# " << Plural(machine.ranks, "rank") << " on " << Plural(machine.hosts, "host") << CoresText(machine)
         << ", " << machine.cpu_model << "\n"
         << "# transport setting: " << machine.transport << "; links: " << machine.links << "\n"
         << ChoiceText(machine) << "# limit: " << machine.limit << "\n";
    if (machine.latency_us > 0) {
      out_ << Format("# the limit's exchange of 8 bytes takes %.3f us\n", machine.latency_us);
    }
    out_ << "# time: median over the calls, each as the slowest rank saw it. algbw = size / time, in GB/s (10^9 "
            "bytes).\n"
         << "# busbw = algbw x 2(n-1)/n for allreduce, (n-1)/n for reduce_scatter, allgather, gather, scatter and "
            "alltoall, 1 for the others.\n"
         << "# lim% = the limit's time / time; gather, scatter and barrier have none. #wrong = wrong elements on all "
            "ranks ("
         << (options.check ? "all are compared, without tolerance" : "not checked: -c 0") << ").\n";
    has_share_ = !machine.HasFewCores();
    if (!has_share_) {
      out_
          << "# lim% is not known (-): ranks take turns on too few cores, and both times are mostly those of waiting\n";
    }
    if (options.local_register) out_ << "# buffers in registered memory\n";
    if (!machine.device.empty()) out_ << "# buffers on " << machine.device << "\n";
    has_modes_ = options.modes != std::vector{Mode::kBlocking};
    if (has_modes_) {
      out_ << "# times are of one call; " << Plural(options.async_calls, "call")
           << " in a row (blocking), in flight at once (async, overlap) or in one submit (group)\n";
    }
    if (options.async_calls == 1 && std::ranges::count(options.modes, Mode::kGroup) > 0) {
      out_ << "# group: of one call, as -m says; more show what a group gains\n";
    }
    has_overlap_ = std::ranges::count(options.modes, Mode::kOverlap) > 0;
    if (has_overlap_) {
      out_ << "# overlap: times and rates include what the caller computes, for as long as the calls take alone; ovl% "
              "= how much of that it hid (less than 0: both took longer than one after the other)\n";
    }
    if (std::ranges::count(options.kinds, Kind::kPingpong) > 0) {
      out_ << "# pingpong: half the time of a message and its answer\n";
    }
  }

  void Add(const Row& row) override {
    if (!headed_ || row.spec.kind != kind_) AddHead(row.spec);
    headed_ = true;
    kind_ = row.spec.kind;
    const bool barrier = kind_ == Kind::kBarrier;
    out_ << Format("%11s %11zu %8s %5s %4s", SizeText(row.bytes).c_str(), row.spec.count,
                   barrier ? "-" : TypeName(row.spec.type), HasOp(kind_) ? OpName(row.spec.op) : "-",
                   HasRoot(kind_) ? std::to_string(row.spec.root).c_str() : "-")
         << (has_modes_ ? Format("%9s", ModeName(row.mode)) : "") << FormOf(row, row.out, row.OutShare());
    if (HasInPlaceForm(kind_)) out_ << FormOf(row, row.in, row.InShare());
    out_ << std::endl;  // Each row is seen as soon as it is known.
  }

  void End(int64_t wrong) override {
    out_ << "# " << (wrong < 0 ? "results were not checked" : "wrong elements: " + std::to_string(wrong)) << std::endl;
  }

  void Fail(const std::string&) override { out_ << "# incomplete: the run failed" << std::endl; }

 private:
  std::string FormOf(const Row& row, const FormResult& form, double share) const {
    const std::string overlap = row.mode == Mode::kOverlap ? Format(" %4.0f", form.Overlap()) : "    -";
    return Form(form, has_share_ ? share : 0) + (has_overlap_ ? overlap : "");
  }

  void AddHead(const CallSpec& spec) {
    const Kind kind = spec.kind;
    const std::string calls = std::string(kCallColumns) + (has_modes_ ? kModeColumn : "");
    const std::string form = std::string(kFormColumns) + (has_overlap_ ? kOverlapColumn : "");
    out_ << "#\n"
         << Format("# %-*s | %-*s", static_cast<int>(calls.size()) - 2, CallName(spec).c_str(),
                   static_cast<int>(form.size()) - 3, "out of place")
         << (HasInPlaceForm(kind) ? " | in place" : "") << "\n"
         << calls << form << (HasInPlaceForm(kind) ? form : "") << "\n";
  }

  std::ostream& out_;
  bool headed_ = false;
  bool has_share_ = true;     // The share of the limit means something.
  bool has_modes_ = false;    // Not all calls are blocking.
  bool has_overlap_ = false;  // Some overlap with computing.
  Kind kind_{};
};

}  // namespace

std::unique_ptr<Report> TableReport(std::ostream& out) { return std::make_unique<Table>(out); }

void FillCpuFacts(Machine* machine) {
  machine->cpu_model = "unknown CPU";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
    machine->cpu_model = line.substr(colon + 2);
    break;
  }
  machine->cores = static_cast<int>(AllowedCpus().size());
  machine->cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

std::string SizeText(size_t bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G"};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

}  // namespace annulus::perf
