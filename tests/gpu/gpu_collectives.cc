// gpu_collectives: allreduces on device buffers of ranks that share GPU 0, checked and timed through the C API. Start
// it with annulus-run.
//
//   gpu_collectives [DRIVER [MOST_BYTES [ROUNDS]]]      DRIVER: libcuda.so.1, 256 MiB and once unless given
//
// Rank 0 prints one line for each size. Ends with status 0 when all results are right, 77 without a GPU.
//
// Threads: one.
#include <annulus.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/gpu/allreduce_run.h"
#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kMostBytes = size_t{256} << 20;

bool Allreduce(annulus_comm_t* comm, const std::byte* in, std::byte* out, size_t count) {
  if (annulus_allreduce(comm, in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM) == ANNULUS_OK) return true;
  annulus_error_t error{};
  error.struct_bytes = sizeof(error);
  annulus_last_error(&error);
  std::fprintf(stderr, "%s\n", error.message);
  return false;
}

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
  AllreduceRun run("allreduce", comm, device.get(), [comm](const std::byte* in, std::byte* out, size_t count) {
    return Allreduce(comm, in, out, count);
  });
  for (int round = 0; ok && round < rounds; ++round) {
    for (size_t bytes = 8; ok && bytes <= most_bytes; bytes *= 32) ok = run.Run(bytes);
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
