// gpu_nccl: the allreduces of gpu_collectives, made by NVIDIA's NCCL, for a comparison in one run. Start it with
// annulus-run, over which the ranks meet.
//
//   gpu_nccl LIBRARY sockets|shared [DRIVER [MOST_BYTES]]      LIBRARY: such as libnccl.so.2
//
// sockets: each rank claims to be on a host of its own. shared: NCCL's own way for ranks that share a GPU. Ends with
// status 0 when all results are right, 77 without a GPU, 78 where NCCL is not there or refuses: then the first line
// says "not run" and why.
//
// Threads: one.
#include <annulus.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/gpu/allreduce_run.h"
#include "tests/gpu/nccl.h"
#include "tests/gpu/real_device.h"

namespace annulus {
namespace {

constexpr int kNoGpu = 77;
constexpr int kNoNccl = 78;
constexpr size_t kMostBytes = size_t{256} << 20;

bool Allreduce(Nccl* nccl, const std::byte* in, std::byte* out, size_t count) {
  Status status = nccl->Allreduce(in, out, count);
  if (status.ok()) status = nccl->Wait();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok();
}

int RunAll(const std::string& library, const std::string& sharing, const std::string& driver, size_t most_bytes) {
  std::unique_ptr<RealDevice> device;
  Status status = RealDevice::Open(driver, &device);
  if (!status.ok()) {
    std::printf("no GPU: %s\n", status.message().c_str());
    return kNoGpu;
  }
  annulus_comm_t* comm = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  int rank = 0;
  annulus_comm_rank(comm, &rank);
  std::unique_ptr<Nccl> nccl;
  status = Nccl::Open(library, sharing == "shared" ? Nccl::Sharing::kShared : Nccl::Sharing::kSockets, comm,
                      device.get(), &nccl);
  if (!status.ok()) {
    if (rank == 0) std::printf("not run: %s\n", status.message().c_str());
    annulus_comm_destroy(comm);
    return kNoNccl;
  }
  if (rank == 0) std::printf("NCCL %d, %s\n", nccl->version(), sharing.c_str());
  bool ok = true;
  AllreduceRun run(
      "NCCL allreduce, " + sharing + ",", comm, device.get(),
      [&](const std::byte* in, std::byte* out, size_t count) { return Allreduce(nccl.get(), in, out, count); });
  for (size_t bytes = 8; ok && bytes <= most_bytes; bytes *= 32) ok = run.Run(bytes);
  nccl.reset();
  return annulus_comm_destroy(comm) == ANNULUS_OK && ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) {
  const std::string sharing = argc > 2 ? argv[2] : "";
  if (sharing != "sockets" && sharing != "shared") {
    std::fprintf(stderr, "usage: gpu_nccl LIBRARY sockets|shared [DRIVER [MOST_BYTES]]\n");
    return 2;
  }
  return annulus::RunAll(argv[1], sharing, argc > 3 ? argv[3] : "libcuda.so.1",
                         argc > 4 ? std::strtoull(argv[4], nullptr, 10) : annulus::kMostBytes);
}
