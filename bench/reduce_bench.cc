// reduce_bench: what the host reducer moves per second, beside memcpy in the same run; one thread.
//
// Bytes per second count every byte read or written: 3 per byte of the result with two sources and one destination, 4
// with two destinations, 2 for memcpy. So a reduction that is bound by memory alone shows about memcpy's figure. Sizes
// are of one buffer: with 256 KiB, three buffers fit a second-level cache of 1 MiB; with 64 MiB they fit no cache.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "collectives/reducer.h"

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
  constexpr uint64_t ones[kNumDataTypes] = {1, 1, 0x3c00, 0x3f80, 0x3f800000, 0x3ff0000000000000,
                                            1, 1, 1,      1,      0x38,       0x3c};
  for (size_t at = 0; at < bytes; at += TypeBytes(type)) {
    std::memcpy(&buffer[at], &ones[static_cast<int>(type)], TypeBytes(type));
  }
  return buffer;
}

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

void Reduce(benchmark::State& state, DataType type, ReduceOp op, int destinations) {
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
  for (auto _ : state) {
    RunOnHost(slice);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes * (2 + destinations)));
}

void RegisterAll() {
  const auto sizes = [](benchmark::internal::Benchmark* bench) { bench->Arg(kCacheBytes)->Arg(kMemoryBytes); };
  benchmark::RegisterBenchmark("memcpy", Memcpy)->Apply(sizes);
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      const std::string name = std::string(TypeName(type)) + "/" + OpName(op);
      benchmark::RegisterBenchmark(name.c_str(), Reduce, type, op, 1)->Apply(sizes);
    }
    const std::string twice = std::string(TypeName(type)) + "/sum to two";
    benchmark::RegisterBenchmark(twice.c_str(), Reduce, type, ReduceOp::kSum, 2)->Apply(sizes);
  }
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("instruction set", annulus::HostReducerTarget());
  annulus::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
