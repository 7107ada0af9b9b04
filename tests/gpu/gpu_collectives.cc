// gpu_collectives: allreduces on device buffers of ranks that share GPU 0, checked and timed through the C API. Start
// it with annulus-run.
//
//   gpu_collectives [DRIVER [MOST_BYTES [ROUNDS]]]      DRIVER: libcuda.so.1, 256 MiB and once unless given
//
// Rank 0 prints one line for each size. Ends with status 0 when all results are right, 77 without a GPU.
//
// Threads: one.
#include <annulus.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kMostBytes = size_t{256} << 20;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Small integers, so that sums are exact; they differ by rank, and repeat after a prime.
float Value(int rank, size_t i) { return static_cast<float>((i % 65521 + static_cast<size_t>(rank) * 7919) % 1000); }

class Rank {
 public:
  Rank(annulus_comm_t* comm, RealDevice* device) : comm_(comm), device_(device) {
    annulus_comm_rank(comm_, &rank_);
    annulus_comm_size(comm_, &size_);
  }

  // Out of place, then in place; false when something is wrong.
  bool Run(size_t bytes) {
    const size_t count = bytes / sizeof(float);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = Value(rank_, i);
    std::byte* const in = device_->Allocate(bytes);
    std::byte* const out = device_->Allocate(bytes);
    device_->Write(in, values.data(), bytes);
    bool ok = Allreduce(in, out, count) && IsSum(out, count);
    const double seconds = ok ? Time(in, out, count) : 0;
    ok = ok && Allreduce(in, in, count) && IsSum(in, count);
    if (rank_ == 0) {
      const double bus = 2.0 * (size_ - 1) / size_ * static_cast<double>(bytes) / seconds / 1e9;
      std::printf("allreduce float32 sum, %d ranks: %10zu bytes %12.2f us %8.2f GB/s bus, %s\n", size_, bytes,
                  seconds * 1e6, bus, ok ? "right" : "WRONG");
      std::fflush(stdout);
    }
    device_->Free(in);
    device_->Free(out);
    return ok;
  }

 private:
  bool Allreduce(const std::byte* in, std::byte* out, size_t count) {
    if (annulus_allreduce(comm_, in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_OK) return true;
    annulus_error_t error{};
    error.struct_bytes = sizeof(error);
    annulus_last_error(&error);
    std::fprintf(stderr, "rank %d: %s\n", rank_, error.message);
    return false;
  }

  bool IsSum(const std::byte* memory, size_t count) {
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

  // The median of some calls, on this rank.
  double Time(const std::byte* in, std::byte* out, size_t count) {
    const int repeats = count > (1 << 20) ? 10 : 50;
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      annulus_barrier(comm_);
      const double begin = Seconds();
      if (!Allreduce(in, out, count)) return 0;
      times.push_back(Seconds() - begin);
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[static_cast<size_t>(repeats) / 2];
  }

  annulus_comm_t* const comm_;
  RealDevice* const device_;
  int rank_ = 0;
  int size_ = 0;
};

int RunAll(const std::string& driver, size_t most_bytes, int rounds) {
  // Before the communicator, which looks for the driver.
  std::unique_ptr<RealDevice> device;
  const Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  bool ok = true;
  Rank rank(comm, device.get());
  for (int round = 0; ok && round < rounds; ++round) {
    for (size_t bytes = 8; ok && bytes <= most_bytes; bytes *= 32) ok = rank.Run(bytes);
  }
  return annulus_comm_destroy(comm) == ANNULUS_OK && ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  return annulus::RunAll(argc > 1 ? argv[1] : "libcuda.so.1",
                         argc > 2 ? std::strtoull(argv[2], nullptr, 10) : annulus::kMostBytes,
                         argc > 3 ? std::atoi(argv[3]) : 1);
}
