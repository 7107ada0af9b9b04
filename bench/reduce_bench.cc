// reduce_bench: what the host reducer moves per second, beside memcpy and the memory's limit in the same run; one
// thread.
//
// Bytes per second count every byte read or written: 3 per byte of the result with two sources and one destination, 4
// with two destinations, 2 for memcpy. So a reduction that is bound by memory alone shows about memcpy's figure. Sizes
// are of one buffer: with 256 KiB, three buffers fit a second-level cache of 1 MiB; with 64 MiB they fit no cache.
//
// The limit is a sum of two float32 sources without anything around it, with plain stores or with stores around the
// caches. `share` is a reduction's rate as a part of the faster one, measured before all else.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/exchange_kernels.h"
#include "collectives/reduce/reducer.h"

namespace annulus {
namespace {

constexpr int64_t kCacheBytes = 256 << 10;
constexpr int64_t kMemoryBytes = 64 << 20;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte[], Free>;

// Touched, so that no page is missing, and filled with ones of `type`: no operation overflows or meets a subnormal.
Buffer MakeBuffer(DataType type, size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  constexpr uint64_t ones[kNumDataTypes] = {1,    1, 0x3c00, 0x3f80, 0x3f800000,  0x3ff0000000000000, 1, 1, 1, 1, 0x38,
                                            0x3c, 1, 1,      1,      0x3f80'0000, 0x3ff0000000000000};
  const size_t part = TypeAlignment(type);
  for (size_t at = 0; at < bytes; at += part) std::memcpy(&buffer[at], &ones[static_cast<int>(type)], part);
  return buffer;
}

void Limit(benchmark::State& state, bool streaming) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const Buffer a = MakeBuffer(DataType::kFloat32, bytes);
  const Buffer b = MakeBuffer(DataType::kFloat32, bytes);
  const Buffer target = MakeBuffer(DataType::kFloat32, bytes);
  const float* const other = reinterpret_cast<const float*>(b.get());
  for (auto _ : state) {
    peers::Fold(reinterpret_cast<const float*>(a.get()), &other, 1, reinterpret_cast<float*>(target.get()), nullptr,
                bytes / sizeof(float), {streaming, false});
    peers::FinishStreaming();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes * 3));
}

// Bytes per second of the faster limit, by size.
class Limits final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      const auto found = run.counters.find("bytes_per_second");
      if (found == run.counters.end() || run.error_occurred) continue;
      const bool in_cache = run.benchmark_name().find("/" + std::to_string(kCacheBytes)) != std::string::npos;
      double& best = in_cache ? in_cache_ : in_memory_;
      best = std::max(best, static_cast<double>(found->second));
    }
  }
  double BytesPerSecond(int64_t size) const { return size == kCacheBytes ? in_cache_ : in_memory_; }

 private:
  double in_cache_ = 0;
  double in_memory_ = 0;
};

void Memcpy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const Buffer source = MakeBuffer(DataType::kFloat32, bytes);
  const Buffer target = MakeBuffer(DataType::kFloat32, bytes);
  for (auto _ : state) {
    std::memcpy(target.get(), source.get(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes * 2));
}

void Reduce(benchmark::State& state, const Limits& limits, DataType type, ReduceOp op, int destinations) {
  const size_t bytes = static_cast<size_t>(state.range(0));
  const Buffer a = MakeBuffer(type, bytes);
  const Buffer b = MakeBuffer(type, bytes);
  const Buffer first = MakeBuffer(type, bytes);
  const Buffer second = MakeBuffer(type, bytes);
  SliceOp slice;
  slice.dst[0] = first.get();
  if (destinations == 2) slice.dst[1] = second.get();
  slice.inline_src[0] = a.get();
  slice.inline_src[1] = b.get();
  slice.num_sources = 2;
  slice.count = bytes / TypeBytes(type);
  slice.type = type;
  slice.op = op;
  slice.divisor = op == ReduceOp::kAvg ? 2 : 0;
  const std::clock_t begin = std::clock();
  for (auto _ : state) {
    RunOnHost(slice);
    benchmark::ClobberMemory();
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const double moved = static_cast<double>(state.iterations() * bytes) * (2 + destinations);
  state.SetBytesProcessed(static_cast<int64_t>(moved));
  const double limit = limits.BytesPerSecond(state.range(0));
  if (limit > 0 && seconds > 0) state.counters["share"] = moved / seconds / limit;
}

void Sizes(benchmark::internal::Benchmark* bench) { bench->Arg(kCacheBytes)->Arg(kMemoryBytes); }

void RegisterLimits() {
  benchmark::RegisterBenchmark("limit/plain", Limit, false)->Apply(Sizes);
  benchmark::RegisterBenchmark("limit/streaming", Limit, true)->Apply(Sizes);
}

void RegisterAll(const Limits& limits) {
  benchmark::RegisterBenchmark("memcpy", Memcpy)->Apply(Sizes);
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (!CanReduce(type, op)) continue;
      const std::string name = std::string(TypeName(type)) + "/" + OpName(op);
      benchmark::RegisterBenchmark(name.c_str(), Reduce, std::cref(limits), type, op, 1)->Apply(Sizes);
    }
    const std::string twice = std::string(TypeName(type)) + "/sum to two";
    benchmark::RegisterBenchmark(twice.c_str(), Reduce, std::cref(limits), type, ReduceOp::kSum, 2)->Apply(Sizes);
  }
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("instruction set", annulus::HostReducerTarget());
  annulus::Limits limits;
  annulus::RegisterLimits();
  benchmark::RunSpecifiedBenchmarks(&limits, "limit/");  // Whatever the filter: the shares need it.
  annulus::RegisterAll(limits);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
