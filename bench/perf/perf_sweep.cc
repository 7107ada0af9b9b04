// One row after the other: check, measure out of place, measure in place, check again, measure the limit.
//
// Threads: see perf_sweep.h.
#include "bench/perf/perf_sweep.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench/perf/perf_buffers.h"
#include "bench/perf/perf_limit.h"
#include "bench/perf/perf_measure.h"

namespace annulus::perf {
namespace {

std::vector<CallSpec> Specs(const Options& options, int nranks) {
  std::vector<CallSpec> specs;
  for (const Kind kind : options.kinds) {
    if (kind == Kind::kBarrier) {
      specs.push_back(SpecForBytes(kind, ANNULUS_INT32, ANNULUS_SUM, 0, 0, nranks));
      continue;
    }
    for (const annulus_type_t type : options.types) {
      // Collectives that reduce nothing have one operation: none.
      const std::vector<annulus_op_t> ops = HasOp(kind) ? options.ops : std::vector{ANNULUS_SUM};
      for (const annulus_op_t op : ops) {
        for (const size_t bytes : Sizes(options)) {
          specs.push_back(SpecForBytes(kind, type, op, options.root, bytes, nranks));
        }
      }
    }
  }
  return specs;
}

// The calls of one timed pass: one blocking call, or several in flight.
class CallPass {
 public:
  CallPass(Group& group, const CallSpec& spec, const Buffers& buffers, Place place, int calls)
      : group_(group), spec_(spec), buffers_(buffers), place_(place), calls_(calls) {
    requests_.reserve(2 * static_cast<size_t>(calls));  // Of sendrecv every call has two.
  }

  Status operator()() {
    const int rank = group_.rank();
    if (calls_ == 1) {
      void* const recv = buffers_.Recv(spec_, place_, rank, 0);
      return group_.Check(Call(group_.comm(), spec_, buffers_.Send(spec_, place_, rank, 0), recv));
    }
    requests_.clear();
    for (int copy = 0; copy < calls_; ++copy) {
      void* const recv = buffers_.Recv(spec_, place_, rank, copy);
      ANNULUS_RETURN_IF_ERROR(
          group_.Check(Start(group_.comm(), spec_, buffers_.Send(spec_, place_, rank, copy), recv, &requests_)));
    }
    for (annulus_request_t* request : requests_) {
      ANNULUS_RETURN_IF_ERROR(group_.Check(annulus_request_wait(request, -1)));
      ANNULUS_RETURN_IF_ERROR(group_.Check(annulus_request_free(request)));
    }
    return Status();
  }

 private:
  Group& group_;
  const CallSpec& spec_;
  const Buffers& buffers_;
  Place place_;
  int calls_;
  std::vector<annulus_request_t*> requests_;
};

class Sweep {
 public:
  Sweep(Group& group, const Options& options) : group_(group), options_(options) {}

  Status Prepare(const annulus_config_t& config, const std::vector<CallSpec>& specs) {
    size_t bytes = 1;
    for (const CallSpec& spec : specs) bytes = std::max(bytes, LargerBytes(spec, group_.size()));
    ANNULUS_RETURN_IF_ERROR(Buffers::Create(bytes, options_.async_calls, options_.local_register, &buffers_));
    return Limit::Create(group_, config, buffers_.arena(bytes), options_.limit, &limit_);
  }

  const Limit& limit() const { return *limit_; }

  Status MeasureRow(const CallSpec& spec, Row* row) {
    row->spec = spec;
    row->bytes = LargerBytes(spec, group_.size());
    ANNULUS_RETURN_IF_ERROR(MeasureForm(spec, Place::kOut, row->bytes, &row->out));
    if (HasInPlaceForm(spec.kind)) ANNULUS_RETURN_IF_ERROR(MeasureForm(spec, Place::kIn, row->bytes, &row->in));
    return limit_->Measure(group_, spec.kind, row->bytes, &row->limit_us);
  }

 private:
  Status Check(const CallSpec& spec, Place place, FormResult* form) {
    // A barrier has no result to check.
    if (!options_.check || spec.kind == Kind::kBarrier) return Status();
    form->wrong = std::max<int64_t>(form->wrong, 0);
    return buffers_.Check(spec, place, group_, ++seed_, options_.corrupt, &form->wrong);
  }

  // Checked before and after, with other inputs: the timed calls must leave nothing behind that spoils later ones.
  Status MeasureForm(const CallSpec& spec, Place place, size_t bytes, FormResult* form) {
    ANNULUS_RETURN_IF_ERROR(Check(spec, place, form));
    const Effort effort = {options_.warmup, options_.iterations, options_.seconds};
    const CallPass pass(group_, spec, buffers_, place, options_.async_calls);
    ANNULUS_RETURN_IF_ERROR(Measure(group_, effort, pass, &form->timing));
    for (double* time : {&form->timing.median_us, &form->timing.min_us, &form->timing.p99_us}) {
      *time /= options_.async_calls;
    }
    form->algbw = static_cast<double>(bytes) / form->timing.median_us * 1e-3;  // Bytes per us to 10^9 bytes per s.
    form->busbw = form->algbw * BusFactor(spec.kind, group_.size());
    return Check(spec, place, form);
  }

  Group& group_;
  const Options& options_;
  Buffers buffers_;
  std::unique_ptr<Limit> limit_;
  uint64_t seed_ = 0;
};

Status Describe(const Group& group, const annulus_config_t& config, const Limit& limit, Machine* described) {
  Machine& machine = *described;
  const auto read_number = [&config](const char* name, auto* number) {
    std::string text;
    Status status = ReadSetting(config, name, &text);
    if (status.ok()) *number = static_cast<std::remove_pointer_t<decltype(number)>>(std::stoll(text));
    return status;
  };
  FillCpuFacts(&machine);
  machine.library_version = annulus_version();
  machine.ranks = group.size();
  machine.hosts = limit.hosts();
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "transport", &machine.transport));
  machine.links = limit.links();
  machine.limit = limit.description();
  machine.latency_us = limit.latency_us();
  ANNULUS_RETURN_IF_ERROR(read_number("slice_bytes", &machine.slice_bytes));
  ANNULUS_RETURN_IF_ERROR(read_number("channels", &machine.channels));
  ANNULUS_RETURN_IF_ERROR(read_number("tcp_sockets", &machine.tcp_sockets));
  ANNULUS_RETURN_IF_ERROR(read_number("checksum", &machine.checksum));
  ANNULUS_RETURN_IF_ERROR(read_number("small_bytes", &machine.small_bytes));
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "algorithm", &machine.algorithm));
  return ReadSetting(config, "tuning", &machine.tuning);
}

// One line on a terminal that the next one overwrites; nothing when errors go to a file or a pipe.
void ShowProgress(const CallSpec& spec, int nranks, size_t done, size_t total) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\x1b[K[%zu/%zu] %s %s %s", done + 1, total, KindName(spec.kind), TypeName(spec.type),
               SizeText(LargerBytes(spec, nranks)).c_str());
}

void EraseProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\x1b[K");
}

}  // namespace

Status RunSweep(Group& group, const Options& options, const annulus_config_t& config,
                const std::vector<std::unique_ptr<Report>>& reports, int64_t* wrong) {
  const std::vector<CallSpec> specs = Specs(options, group.size());
  Sweep sweep(group, options);
  ANNULUS_RETURN_IF_ERROR(sweep.Prepare(config, specs));
  Machine machine;
  ANNULUS_RETURN_IF_ERROR(Describe(group, config, sweep.limit(), &machine));
  for (const auto& report : reports) report->Begin(options, machine);
  *wrong = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!reports.empty()) ShowProgress(specs[i], group.size(), i, specs.size());
    Row row;
    ANNULUS_RETURN_IF_ERROR(sweep.MeasureRow(specs[i], &row));
    if (!reports.empty()) EraseProgress();
    for (const auto& report : reports) report->Add(row);
    *wrong += std::max<int64_t>(0, row.out.wrong) + std::max<int64_t>(0, row.in.wrong);
  }
  for (const auto& report : reports) report->End(options.check ? *wrong : -1);
  return Status();
}

}  // namespace annulus::perf
