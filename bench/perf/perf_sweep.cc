// One row after the other: check, measure out of place, measure in place, check again, measure the limit.
//
// Threads: see perf_sweep.h.
#include "bench/perf/perf_sweep.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "bench/perf/limit/perf_limit.h"
#include "bench/perf/perf_buffers.h"
#include "bench/perf/perf_calls.h"
#include "bench/perf/perf_computing.h"
#include "bench/perf/perf_measure.h"
#include "transport/select/select.h"

namespace annulus::perf {
namespace {

// What one row measures.
struct Subject {
  CallSpec spec;
  Mode mode = Mode::kBlocking;
};

// The modes of a call follow one another, so that they meet the same machine.
std::vector<Subject> Subjects(const Options& options, int nranks) {
  std::vector<Subject> subjects;
  const auto add = [&](const CallSpec& spec) {
    for (const Mode mode : options.modes) {
      if (HasMode(spec.kind, mode)) subjects.push_back({spec, mode});
    }
  };
  for (const Kind kind : options.kinds) {
    if (kind == Kind::kBarrier) {
      add(SpecForBytes(kind, ANNULUS_INT32, ANNULUS_SUM, 0, 0, nranks));
      continue;
    }
    for (const annulus_type_t type : options.types) {
      // Collectives that reduce nothing have one operation: none.
      const std::vector<annulus_op_t> ops = HasOp(kind) ? options.ops : std::vector{ANNULUS_SUM};
      for (const annulus_op_t op : ops) {
        for (const size_t bytes : Sizes(options)) {
          CallSpec spec = SpecForBytes(kind, type, op, options.root, bytes, nranks);
          spec.has_counts = options.has_counts;
          add(spec);
        }
      }
    }
  }
  return subjects;
}

class Sweep {
 public:
  Sweep(Group& group, const Options& options, Gpu* gpu) : group_(group), options_(options), gpu_(gpu) {}

  Status Prepare(const annulus_config_t& config, const std::vector<Subject>& subjects) {
    size_t bytes = 1;
    for (const Subject& subject : subjects) bytes = std::max(bytes, LargerBytes(subject.spec, group_.size()));
    ANNULUS_RETURN_IF_ERROR(Buffers::Create(bytes, options_.async_calls, options_.local_register, gpu_, &buffers_));
    if (gpu_ != nullptr) ANNULUS_RETURN_IF_ERROR(WarmUpGpu());
    // A group's limit moves the data of all its calls.
    const bool has_groups = std::ranges::count(options_.modes, Mode::kGroup) > 0;
    const size_t calls = has_groups ? static_cast<size_t>(options_.async_calls) : 1;
    return Limit::Create(group_, config, buffers_.arena(bytes * calls), options_.limit, &limit_);
  }

  const Limit& limit() const { return *limit_; }

  Status MeasureRow(const Subject& subject, Row* row) {
    const CallSpec& spec = subject.spec;
    row->spec = spec;
    row->mode = subject.mode;
    row->calls = options_.async_calls;
    row->bytes = LargerBytes(spec, group_.size());
    ANNULUS_RETURN_IF_ERROR(MeasureForm(*row, Place::kOut, &row->out));
    if (HasInPlaceForm(spec.kind)) ANNULUS_RETURN_IF_ERROR(MeasureForm(*row, Place::kIn, &row->in));
    if (subject.mode == Mode::kOverlap) return Status();  // The limit's time has no computing in it.
    const int exchanged = subject.mode == Mode::kGroup ? row->calls : 1;
    return limit_->Measure(group_, spec.kind, row->bytes, exchanged, &row->limit_us);
  }

 private:
  // The library takes it up with the first call, and can tell how only then.
  Status WarmUpGpu() {
    const CallSpec one = {Kind::kAllreduce, ANNULUS_UINT8, ANNULUS_MAX, 0, 1};
    void* const memory = buffers_.Send(one, Place::kOut, group_.rank(), 0);
    return group_.Check(annulus_allreduce(group_.comm(), memory, memory, one.count, one.type, one.op));
  }

  Status Check(const Row& row, Place place, const Pass& pass, FormResult* form) {
    // A barrier has no result to check.
    if (!options_.check || row.spec.kind == Kind::kBarrier) return Status();
    form->wrong = std::max<int64_t>(form->wrong, 0);
    const Buffers::Checked calls{row.spec, place, row.calls, pass};
    const uint64_t seed = seed_ + 1;
    seed_ += static_cast<uint64_t>(row.calls);
    return buffers_.Check(calls, group_, seed, options_.corrupt, &form->wrong);
  }

  // Checked before and after, with other inputs: the timed calls must leave nothing behind that spoils later ones.
  Status MeasureForm(const Row& row, Place place, FormResult* form) {
    std::vector<CallBuffers> buffers;
    for (int copy = 0; copy < row.calls; ++copy) {
      buffers.push_back(
          {buffers_.Send(row.spec, place, group_.rank(), copy), buffers_.Recv(row.spec, place, group_.rank(), copy)});
    }
    CallPass calls(group_, row.spec, row.mode, std::move(buffers), gpu_);
    const Pass pass = std::ref(calls);
    ANNULUS_RETURN_IF_ERROR(Check(row, place, pass, form));
    const Effort effort = {options_.warmup, options_.iterations, options_.seconds};
    ANNULUS_RETURN_IF_ERROR(Measure(group_, effort, pass, &form->timing));
    if (row.mode == Mode::kOverlap) ANNULUS_RETURN_IF_ERROR(MeasureOverlap(effort, &calls, form));
    for (double* time :
         {&form->timing.median_us, &form->timing.min_us, &form->timing.p99_us, &form->alone_us, &form->computing_us}) {
      *time *= TimeFactor(row.spec.kind) / row.calls;
    }
    form->algbw = static_cast<double>(row.bytes) / form->timing.median_us * 1e-3;  // Bytes per us to 10^9 bytes per s.
    form->busbw = form->algbw * BusFactor(row.spec.kind, group_.size());
    return Check(row, place, pass, form);
  }

  // The same calls while the caller computes for as long as they took in `form`.
  Status MeasureOverlap(const Effort& effort, CallPass* calls, FormResult* form) {
    form->alone_us = form->timing.median_us;
    Computing computing;
    ANNULUS_RETURN_IF_ERROR(Computing::Lasting(form->alone_us * 1e-6, group_, &computing));
    form->computing_us = computing.seconds() * 1e6;
    calls->set_computing(computing);
    ANNULUS_RETURN_IF_ERROR(Measure(group_, effort, std::ref(*calls), &form->timing));
    calls->set_computing(Computing());
    return Status();
  }

  Group& group_;
  const Options& options_;
  Gpu* const gpu_;
  Buffers buffers_;
  std::unique_ptr<Limit> limit_;
  uint64_t seed_ = 0;  // The latest in use.
};

// "" where the buffers are in host memory.
Status DescribeDevice(const Group& group, const Gpu* gpu, std::string* text) {
  if (gpu == nullptr) return Status();
  annulus_device_t device{};
  device.struct_bytes = sizeof device;
  ANNULUS_RETURN_IF_ERROR(group.Check(annulus_comm_device(group.comm(), &device)));
  *text = "GPU " + std::to_string(device.number) + ", " + device.name + ", CUDA " +
          std::to_string(device.driver / 1000) + "." + std::to_string(device.driver % 1000 / 10) + "; " +
          (device.path == ANNULUS_PATH_KERNELS ? "kernels" : "copies by the CPU") + (*device.why != '\0' ? ": " : "") +
          device.why;
  return Status();
}

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
  ANNULUS_RETURN_IF_ERROR(read_number("checksum", &machine.checksum));
  ANNULUS_RETURN_IF_ERROR(read_number("small_bytes", &machine.small_bytes));
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "algorithm", &machine.algorithm));
  ANNULUS_RETURN_IF_ERROR(ReadSetting(config, "tuning", &machine.tuning));
  for (const TransportInfo* transport : Transports()) {
    for (const char* name : transport->cost_settings) {
      machine.cost_settings.emplace_back(name, "");
      ANNULUS_RETURN_IF_ERROR(ReadSetting(config, name, &machine.cost_settings.back().second));
    }
  }
  return Status();
}

// One line on a terminal that the next one overwrites; nothing when errors go to a file or a pipe.
void ShowProgress(const Subject& subject, int nranks, size_t done, size_t total) {
  if (isatty(STDERR_FILENO) == 0) return;
  const CallSpec& spec = subject.spec;
  std::fprintf(stderr, "\r\x1b[K[%zu/%zu] %s %s %s %s", done + 1, total, CallName(spec).c_str(), TypeName(spec.type),
               SizeText(LargerBytes(spec, nranks)).c_str(), ModeName(subject.mode));
}

void EraseProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\x1b[K");
}

Status RunRows(Group& group, const Options& options, const annulus_config_t& config, Gpu* gpu,
               const std::vector<std::unique_ptr<Report>>& reports, int64_t* wrong) {
  const std::vector<Subject> subjects = Subjects(options, group.size());
  Sweep sweep(group, options, gpu);
  ANNULUS_RETURN_IF_ERROR(sweep.Prepare(config, subjects));
  Machine machine;
  ANNULUS_RETURN_IF_ERROR(Describe(group, config, sweep.limit(), &machine));
  ANNULUS_RETURN_IF_ERROR(DescribeDevice(group, gpu, &machine.device));
  for (const auto& report : reports) report->Begin(options, machine);
  *wrong = 0;
  for (size_t i = 0; i < subjects.size(); ++i) {
    if (!reports.empty()) ShowProgress(subjects[i], group.size(), i, subjects.size());
    Row row;
    const Status measured = sweep.MeasureRow(subjects[i], &row);
    if (!reports.empty()) EraseProgress();
    if (!measured.ok()) return measured;
    for (const auto& report : reports) report->Add(row);
    *wrong += std::max<int64_t>(0, row.out.wrong) + std::max<int64_t>(0, row.in.wrong);
  }
  return Status();
}

}  // namespace

Status RunSweep(Group& group, const Options& options, const annulus_config_t& config, Gpu* gpu,
                const std::vector<std::unique_ptr<Report>>& reports, int64_t* wrong) {
  const Status status = RunRows(group, options, config, gpu, reports, wrong);
  for (const auto& report : reports) {
    if (status.ok()) {
      report->End(options.check ? *wrong : -1);
    } else {
      report->Fail(status.ToString());
    }
  }
  return status;
}

}  // namespace annulus::perf
