// verbs_cost_bench: processor time of transport/verbs for each slice, on a device that costs little (straight_nic.h).
//
//   ns        of the transport alone, both ends together: a slice sent and received. The device, which copies the data,
//             and the clock that measures it are subtracted.
//   device    of the device.
//   the rest  counts for each slice.
//
// Threads: one.
#include <benchmark/benchmark.h>

#include <string>

#include "tests/verbs/cost/slice_costs.h"
#include "tests/verbs/cost/straight_nic.h"

namespace annulus {
namespace {

constexpr uint64_t kSlices = 10'000;

void Slices(benchmark::State& state, const SlicePattern& pattern) {
  const auto link = SliceLink::Open(pattern);
  if (link == nullptr || !link->Run(kSlices)) return state.SkipWithError("no link");
  const double clock = TicksOfTheClock();
  const double rate = TicksPerNanosecond();
  const StraightCounts before = CountsOfStraightNic();
  const uint64_t begin = Ticks();
  for (auto _ : state) {
    if (!link->Run(kSlices)) return state.SkipWithError("the link failed");
  }
  const auto all = static_cast<double>(Ticks() - begin);
  const StraightCounts& now = CountsOfStraightNic();
  const double slices = static_cast<double>(link->SlicesOf(kSlices)) * static_cast<double>(state.iterations());
  const auto per_slice = [&](uint64_t StraightCounts::*count) {
    return static_cast<double>(now.*count - before.*count) / slices;
  };
  const double device = per_slice(&StraightCounts::ticks);
  state.counters["ns"] = (all / slices - device - per_slice(&StraightCounts::calls) * clock) / rate;
  state.counters["device"] = device / rate;
  state.counters["requests"] = per_slice(&StraightCounts::send_requests);
  state.counters["doorbells"] = per_slice(&StraightCounts::send_doorbells);
  state.counters["receives"] = per_slice(&StraightCounts::recv_doorbells);
  state.counters["completions"] =
      per_slice(&StraightCounts::send_completions) + per_slice(&StraightCounts::recv_completions);
  state.counters["polls"] = per_slice(&StraightCounts::polls);
  state.counters["inline"] = per_slice(&StraightCounts::inline_requests);
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const annulus::SlicePattern& pattern : annulus::kSlicePatterns) {
    benchmark::RegisterBenchmark(pattern.name, annulus::Slices, pattern);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
