// MappedFold: a rank of a job of real processes, each with the stand-in for CUDA's driver, whose calls work on memory
// of the virtual memory API: what such calls need, and what they add to the work of all ranks.
//
// Threads: one.
#pragma once

#include <annulus.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/collectives/cuda/open_files.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/cuda/fake_driver/fake_control.h"
#include "tests/cuda/mapped_memory.h"

namespace annulus {

constexpr const char* kDriverFile = "tests/cuda/fake_driver/libcuda.so.1";

enum class FoldKind { kAllreduce, kReduceScatter, kAllgather };

// One rank's calls.
struct FoldCalls {
  annulus_status_t Run(FoldKind kind, const void* in, void* out, size_t count) const {
    if (kind == FoldKind::kAllreduce) return annulus_allreduce(comm, in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM);
    if (kind == FoldKind::kAllgather) return annulus_allgather(comm, in, out, count, ANNULUS_FLOAT32);
    return annulus_reduce_scatter(comm, in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM);
  }

  // Makes the call on host memory, then on these buffers, and compares. `round` makes other numbers.
  void Compare(FoldKind kind, std::byte* in, std::byte* out, size_t count, int round = 0) const {
    const size_t all = count * static_cast<size_t>(nranks);
    std::mt19937 random(static_cast<unsigned>(1000 * round + rank));
    std::vector<float> input(kind == FoldKind::kReduceScatter ? all : count);
    for (float& each : input) each = static_cast<float>(random()) / 1e6F;
    std::vector<float> expected(kind == FoldKind::kAllgather ? all : count);
    ASSERT_EQ(Run(kind, input.data(), expected.data(), count), ANNULUS_OK) << LastMessage(comm);
    fake->Write(in, input.data(), input.size() * sizeof(float));
    ASSERT_EQ(Run(kind, in, out, count), ANNULUS_OK) << LastMessage(comm);
    std::vector<float> found(expected.size());
    fake->Read(found.data(), out, found.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
        << "rank " << rank << ", kind " << static_cast<int>(kind) << ", round " << round;
  }

  cuda::FakeControl* fake = nullptr;
  annulus_comm_t* comm = nullptr;
  int rank = 0;
  int nranks = 1;
};

class MappedRank : public FoldCalls {
 public:
  // What the library finds of the driver is this.
  explicit MappedRank(const cuda::FakeOptions& options = {}) {
    void* const handle = dlopen(kDriverFile, RTLD_NOW);
    ANNULUS_CHECK(handle != nullptr);
    fake = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
    fake->Reset(options);
    ANNULUS_CHECK(cuda::Driver::Find(kDriverFile, &driver_).ok());
  }

  void Join(const Cluster& cluster, int number, int of) {
    rank = number;
    nranks = of;
    const UserConfig config = cluster.Config(rank);
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
  }
  void Leave() { EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK); }

  std::unique_ptr<MappedMemory> Make(const MappedShape& shape) const {
    std::unique_ptr<MappedMemory> made;
    const Status status = MappedMemory::Make(*driver_, ContextOf(shape.gpu), shape, &made);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return made;
  }

  const cuda::Driver& driver() const { return *driver_; }
  cuda::Context ContextOf(int gpu) const {
    cuda::Device device = 0;
    cuda::Context context = nullptr;
    ANNULUS_CHECK((*driver_)->DeviceGet(&device, gpu) == cuda::Result::kSuccess);
    ANNULUS_CHECK((*driver_)->DevicePrimaryCtxRetain(&context, device) == cuda::Result::kSuccess);
    return context;
  }

  // A sum over all ranks, on host memory.
  int64_t SumOf(int64_t value) const {
    EXPECT_EQ(annulus_allreduce(comm, &value, &value, 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK) << LastMessage(comm);
    return value;
  }

  // What the ranks have done so far.
  struct Work {
    int64_t launches;
    int64_t copies;
    int64_t exports;
    int64_t imports;
  };
  Work Done() const {
    const cuda::FakeCounts counts = fake->Counts();
    return {SumOf(counts.launches), SumOf(counts.copies), SumOf(counts.exports), SumOf(counts.imports)};
  }

 private:
  std::unique_ptr<cuda::Driver> driver_;
};

// Kills a process when the GPU has work, which goes on when the process is gone.
inline void KillDuringWork(cuda::FakeControl* fake, pid_t process) {
  while (fake->Counts().pending == 0) poll(nullptr, 0, 1);
  const int gone = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  ASSERT_GE(gone, 0);
  kill(process, SIGKILL);
  pollfd wait{gone, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 60'000), 1);
  close(gone);
  fake->Hold(false);
}

inline ClusterConfig ProcessesConfig(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = "shm";
  return config;
}

// Calls body(rank) in a process for each, and expects that each ends well, but for `killed`, which ends by SIGKILL.
// The calling process must have had no threads.
inline void InProcesses(int nranks, const std::function<void(int rank)>& body, int killed = -1) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < nranks; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(100);
      body(rank);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < nranks; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0), children[static_cast<size_t>(rank)]);
    if (rank == killed) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << rank;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << " ended with " << status;
    }
  }
}

// The same with a rank of one job in each process; nothing may have been done wrong, or be left.
inline void OnProcesses(int nranks, const std::function<void(MappedRank* rank)>& body,
                        const cuda::FakeOptions& options = {}) {
  const Cluster cluster(ProcessesConfig(nranks));
  InProcesses(nranks, [&](int rank) {
    MappedRank own(options);
    own.Join(cluster, rank, nranks);
    body(&own);
    own.Leave();
    EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
    EXPECT_EQ(own.fake->Counts().handles, 0);
    EXPECT_EQ(own.fake->Counts().ranges, 0);
    EXPECT_EQ(own.fake->Counts().mappings, 0);
  });
}

}  // namespace annulus
