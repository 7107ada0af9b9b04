// libnccl_stand_in.so: what gpu_nccl and gpu_late need of NCCL, on the stand-in for CUDA's driver: sums of float32 that
// are exchanged through shared memory, at once instead of in a stream. As NCCL it refuses ranks that share a GPU unless
// a variable allows it.
//
// Threads: one.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver/fake_control.h"
#include "tests/gpu/nccl_functions.h"

namespace annulus {
namespace {

constexpr int kInvalidUsage = 5;  // ncclInvalidUsage.
constexpr int kSystemError = 2;   // ncclSystemError.
constexpr size_t kPiece = 16 * 1024;
constexpr int kMostRanks = 16;

// Begins with zeros, as a new memory file.
struct Shared {
  std::atomic<int> arrived;  // All arrivals at all barriers so far.
  float values[kMostRanks][kPiece];
};

struct Job {
  Shared* shared = nullptr;
  int rank = 0;
  int nranks = 0;
  int barriers = 0;

  void Barrier() {
    shared->arrived.fetch_add(1);
    ++barriers;
    while (shared->arrived.load() < barriers * nranks) sched_yield();
  }
};

cuda::FakeControl* Control() {
  void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
}

}  // namespace
}  // namespace annulus

extern "C" {

int ncclGetVersion(int* version) {
  *version = 23000;
  return 0;
}
const char* ncclGetErrorString(int) { return "an error of the stand-in"; }

int ncclGetUniqueId(annulus::NcclId* id) {
  std::snprintf(id->text, sizeof id->text, "/annulus-nccl-%d", getpid());
  return 0;
}

int ncclCommInitRank(void** comm, int nranks, annulus::NcclId id, int rank) {
  if (std::getenv("NCCL_HOSTID") == nullptr && std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") == nullptr)
    return annulus::kInvalidUsage;
  if (nranks > annulus::kMostRanks) return annulus::kInvalidUsage;
  const int file = shm_open(id.text, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(annulus::Shared)) != 0) return annulus::kSystemError;
  void* const memory = mmap(nullptr, sizeof(annulus::Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return annulus::kSystemError;
  auto job = std::make_unique<annulus::Job>();
  job->shared = static_cast<annulus::Shared*>(memory);
  job->rank = rank;
  job->nranks = nranks;
  job->Barrier();
  if (rank == 0) shm_unlink(id.text);
  *comm = job.release();
  return 0;
}

int ncclCommDestroy(void* comm) {
  const std::unique_ptr<annulus::Job> job(static_cast<annulus::Job*>(comm));
  munmap(job->shared, sizeof(annulus::Shared));
  return 0;
}

int ncclAllReduce(const void* in, void* out, size_t count, int, int, void* comm, void*) {
  auto* const job = static_cast<annulus::Job*>(comm);
  annulus::cuda::FakeControl* const gpu = annulus::Control();
  const auto* const from = static_cast<const std::byte*>(in);
  auto* const to = static_cast<std::byte*>(out);
  std::vector<float> sums(annulus::kPiece);
  for (size_t at = 0; at < count; at += annulus::kPiece) {
    const size_t piece = std::min(annulus::kPiece, count - at);
    const size_t bytes = piece * sizeof(float);
    gpu->Read(job->shared->values[job->rank], from + at * sizeof(float), bytes);
    job->Barrier();
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int rank = 0; rank < job->nranks; ++rank) {
      for (size_t i = 0; i < piece; ++i) sums[i] += job->shared->values[rank][i];
    }
    gpu->Write(to + at * sizeof(float), sums.data(), bytes);
    job->Barrier();
  }
  return 0;
}

}  // extern "C"
