#include "tests/gpu/allreduce_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

namespace annulus {
namespace {

// Small integers, so that sums are exact; they differ by rank, and repeat after a prime.
float Value(int rank, size_t i) { return static_cast<float>((i % 65521 + static_cast<size_t>(rank) * 7919) % 1000); }

}  // namespace

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

AllreduceRun::AllreduceRun(std::string name, annulus_comm_t* comm, RealDevice* device, Allreduce allreduce)
    : name_(std::move(name)), comm_(comm), device_(device), allreduce_(std::move(allreduce)) {
  annulus_comm_rank(comm_, &rank_);
  annulus_comm_size(comm_, &size_);
}

bool AllreduceRun::Run(size_t bytes) {
  const size_t count = bytes / sizeof(float);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank_, i);
  std::byte* const in = device_->Allocate(bytes);
  std::byte* const out = device_->Allocate(bytes);
  device_->Write(in, values.data(), bytes);
  bool ok = allreduce_(in, out, count) && IsSum(out, count);
  const double seconds = ok ? Time(in, out, count) : 0;
  ok = ok && allreduce_(in, in, count) && IsSum(in, count);
  if (rank_ == 0) {
    const double bus = 2.0 * (size_ - 1) / size_ * static_cast<double>(bytes) / seconds / 1e9;
    std::printf("%s float32 sum, %d ranks: %10zu bytes %12.2f us %8.2f GB/s bus, %s\n", name_.c_str(), size_, bytes,
                seconds * 1e6, bus, ok ? "right" : "WRONG");
    std::fflush(stdout);
  }
  device_->Free(in);
  device_->Free(out);
  return ok;
}

bool AllreduceRun::IsSum(const std::byte* memory, size_t count) {
  std::vector<float> found(count);
  device_->Read(found.data(), memory, count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += Value(rank, i);
    if (found[i] == sum) continue;
    std::fprintf(stderr, "rank %d: element %zu is %g instead of %g\n", rank_, i, found[i], sum);
    return false;
  }
  return true;
}

double AllreduceRun::Time(const std::byte* in, std::byte* out, size_t count) {
  const int repeats = count > (1 << 20) ? 10 : 50;
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    annulus_barrier(comm_);
    const double begin = SecondsNow();
    if (!allreduce_(in, out, count)) return 0;
    times.push_back(SecondsNow() - begin);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats) / 2];
}

}  // namespace annulus
