// The sweep: every collective, type, operation and size that the options ask for, measured, checked and reported.
//
// Threads: one thread at a time; collective: all ranks call it in the same order with equal options.
#pragma once

#include <annulus.h>

#include <memory>
#include <vector>

#include "bench/perf/perf_gpu.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_options.h"
#include "bench/perf/perf_report.h"

namespace annulus::perf {

// Runs the sweep, with buffers on `gpu` unless that is null; `reports` is empty on all ranks but 0. *wrong: wrong
// elements on all ranks, 0 when unchecked.
Status RunSweep(Group& group, const Options& options, const annulus_config_t& config, Gpu* gpu,
                const std::vector<std::unique_ptr<Report>>& reports, int64_t* wrong);

}  // namespace annulus::perf
