// The table that people read, and the machine's facts above it.
//
// Threads: see perf_report.h.
#include <sched.h>

#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "bench/perf_report.h"

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

// Four significant digits, so that nanoseconds and seconds fit one column.
std::string Micros(double us) {
  const int decimals = us < 10 ? 3 : us < 100 ? 2 : us < 1000 ? 1 : 0;
  return Format("%9.*f", decimals, us);
}

std::string Form(const FormResult& form, double share) {
  const std::string wrong = form.wrong < 0 ? "-" : std::to_string(form.wrong);
  const std::string limit = share > 0 ? Format("%4.0f", share) : "   -";
  return " | " + Micros(form.timing.median_us) + " " + Micros(form.timing.min_us) + " " + Micros(form.timing.p99_us) +
         Format(" %7.2f %7.2f", form.algbw, form.busbw) + " " + limit + Format(" %6s", wrong.c_str());
}

class Table final : public Report {
 public:
  explicit Table(std::ostream& out) : out_(out) {}

  void Begin(const Options& options, const Machine& machine) override {
    out_ << "# annulus-perf, Annulus " << machine.library_version << "\n"
         << "# " << machine.ranks << (machine.ranks == 1 ? " rank" : " ranks") << " on " << machine.hosts
         << (machine.hosts == 1 ? " host" : " hosts") << ", " << machine.cores
         << (machine.cores == 1 ? " core" : " cores") << " for rank 0, " << machine.cpu_model << "\n"
         << "# transport setting: " << machine.transport << "; links: " << machine.links << "\n"
         << "# limit: " << machine.limit << "\n";
    if (machine.latency_us > 0)
      out_ << "# the limit's exchange of 8 bytes takes " << Micros(machine.latency_us) << " us\n";
    out_ << "# time: of the slowest rank; med = median. algbw = size / median time, in GB/s (10^9 bytes); busbw = "
            "algbw x\n"
         << "# 2(n-1)/n for allreduce, (n-1)/n for reduce_scatter and allgather, 1 for broadcast and reduce.\n"
         << "# lim% = the limit's time / median time. #wrong = wrong elements on all ranks ("
         << (options.check ? "every element is compared, without tolerance" : "not checked: -c 0") << ").\n";
    if (options.async_calls > 1) out_ << "# " << options.async_calls << " asynchronous calls in flight at once\n";
  }

  void Add(const Row& row) override {
    if (!headed_ || row.spec.kind != kind_) {
      const char* const form = "  time(us)       min       p99   algbw   busbw lim% #wrong";
      out_ << "#\n# " << KindName(row.spec.kind)
           << Format("%*s", 47 - static_cast<int>(std::string(KindName(row.spec.kind)).size()), "")
           << Format(" | %-58s | %s\n", "out of place", "in place") << "#      size        count     type    op root"
           << "      | " << form << " | " << form << "\n";
    }
    headed_ = true;
    kind_ = row.spec.kind;
    const bool barrier = kind_ == Kind::kBarrier;
    out_ << Format("%11s %12zu %8s %5s %4s", SizeText(row.bytes).c_str(), row.spec.count,
                   barrier ? "-" : TypeName(row.spec.type), HasOp(kind_) ? OpName(row.spec.op) : "-",
                   HasRoot(kind_) ? std::to_string(row.spec.root).c_str() : "-")
         << "     " << Form(row.out, row.OutShare());
    if (!barrier) out_ << Form(row.in, row.InShare());
    out_ << std::endl;  // Each row is seen as soon as it is known.
  }

  void End(int64_t wrong) override {
    out_ << "# " << (wrong < 0 ? "results were not checked" : "wrong elements: " + std::to_string(wrong)) << std::endl;
  }

 private:
  std::ostream& out_;
  bool headed_ = false;
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
  cpu_set_t usable;
  CPU_ZERO(&usable);
  machine->cores = sched_getaffinity(0, sizeof(usable), &usable) == 0 ? CPU_COUNT(&usable) : 0;
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
