// Collectives on the memory of one GPU that all ranks share: one fold does them, in a launch of one rank, with the bits
// of the same call on host memory; and what cannot be shared goes the other way. All on the stand-in for the driver.
#include <annulus.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/cuda/fake_driver/fake_control.h"

namespace annulus {
namespace {

using Bytes = std::vector<std::byte>;

// Resets the stand-in once: the process's domain keeps what it finds.
cuda::FakeControl* LoadDriver() {
  static cuda::FakeControl* const fake = [] {
    void* const handle = dlopen("tests/cuda/fake_driver/libcuda.so.1", RTLD_NOW);
    EXPECT_NE(handle, nullptr) << dlerror();
    cuda::FakeControl* const control = reinterpret_cast<cuda::GetFakeControl>(dlsym(handle, "fake_cuda_control"))();
    control->Reset({.devices = 2});
    return control;
  }();
  return fake;
}

bool HasKernels() { return !cuda::KernelImage().empty(); }

enum class Kind { kAllreduce, kReduceScatter, kAllgather };

struct Call {
  Kind kind;
  annulus_type_t type;
  annulus_op_t op;
  size_t count;  // As of the C API.
  bool in_place = false;
};

struct Sizes {
  size_t input;
  size_t output;
};
Sizes SizesOf(const Call& call, int nranks) {
  const size_t one = call.count * annulus_type_bytes(call.type);
  const size_t all = one * static_cast<size_t>(nranks);
  return {call.kind == Kind::kReduceScatter ? all : one, call.kind == Kind::kAllgather ? all : one};
}

annulus_status_t Run(annulus_comm_t* comm, const Call& call, const void* in, void* out) {
  switch (call.kind) {
    case Kind::kAllreduce:
      return annulus_allreduce(comm, in, out, call.count, call.type, call.op);
    case Kind::kReduceScatter:
      return annulus_reduce_scatter(comm, in, out, call.count, call.type, call.op);
    default:
      return annulus_allgather(comm, in, out, call.count, call.type);
  }
}

Bytes RandomBytes(size_t size, int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  Bytes bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

// Runs the call on host memory, and on GPU `gpu` (-1: on host memory again), and compares. Buffers begin `offset`
// elements into their allocations.
void Compare(annulus_comm_t* comm, const Call& call, int rank, int nranks, int gpu, size_t offset) {
  cuda::FakeControl* const fake = LoadDriver();
  const Sizes sizes = SizesOf(call, nranks);
  Bytes input = RandomBytes(sizes.input, 100 * static_cast<int>(call.type) + rank);
  Bytes expected(sizes.output);
  ASSERT_EQ(Run(comm, call, input.data(), expected.data()), ANNULUS_OK) << LastMessage(comm);
  if (gpu < 0) {
    Bytes found(sizes.output);
    ASSERT_EQ(Run(comm, call, input.data(), found.data()), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(found, expected);
    return;
  }
  const size_t before = offset * annulus_type_bytes(call.type);
  std::byte* const in = fake->Allocate(gpu, before + sizes.input);
  std::byte* const out = call.in_place ? in : fake->Allocate(gpu, before + sizes.output);
  fake->Write(in + before, input.data(), input.size());
  EXPECT_EQ(Run(comm, call, in + before, out + before), ANNULUS_OK) << LastMessage(comm);
  Bytes found(sizes.output);
  fake->Read(found.data(), out + before, found.size());
  EXPECT_EQ(found, expected) << "kind " << static_cast<int>(call.kind) << ", type " << call.type << ", operation "
                             << call.op << ", " << call.count << " elements";
  fake->Free(in);
  if (out != in) fake->Free(out);
}

template <class Test>
void OnRanks(int nranks, Test test, const std::string& device_reduce = "auto") {
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = "shm";
  config.device_reduce = device_reduce;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) { test(comm, rank); });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// What a call adds to the launches and copies of all ranks.
struct Work {
  int64_t launches;
  int64_t copies;
};
Work WorkOf(int nranks, const Call& call, const std::string& device_reduce = "auto") {
  cuda::FakeControl* const fake = LoadDriver();
  Work work{};
  OnRanks(
      nranks,
      [&](annulus_comm_t* comm, int rank) {
        const cuda::FakeCounts before = fake->Counts();
        annulus_barrier(comm);
        Compare(comm, call, rank, nranks, 0, 0);
        annulus_barrier(comm);
        const cuda::FakeCounts after = fake->Counts();
        if (rank == 0) work = {after.launches - before.launches, after.copies - before.copies};
        annulus_barrier(comm);
      },
      device_reduce);
  return work;
}

constexpr size_t kCount = 30'011;

TEST(SharedFoldTest, OneLaunchDoesTheWholeCallAndNothingIsCopied) {
  if (!HasKernels()) GTEST_SKIP() << "this build has no kernels";
  for (const int nranks : {2, 3, 5}) {
    for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather}) {
      const Work work = WorkOf(nranks, {kind, ANNULUS_FLOAT32, ANNULUS_SUM, kCount});
      EXPECT_EQ(work.launches, 1) << nranks << " ranks, kind " << static_cast<int>(kind);
      EXPECT_EQ(work.copies, 0);
    }
  }
}

TEST(SharedFoldTest, SmallCallsAndThoseForTheCpuGoTheOtherWay) {
  const Call small{Kind::kAllreduce, ANNULUS_FLOAT32, ANNULUS_SUM, 1024};
  EXPECT_GT(WorkOf(3, small).copies, 0);
  const Call large{Kind::kAllreduce, ANNULUS_FLOAT32, ANNULUS_SUM, kCount};
  EXPECT_GT(WorkOf(3, large, "cpu").copies, 0);
}

TEST(SharedFoldTest, EveryTypeAndOperationHasTheBitsOfHostMemory) {
  constexpr annulus_type_t kTypes[] = {ANNULUS_INT8,        ANNULUS_UINT8,       ANNULUS_INT16,     ANNULUS_UINT16,
                                       ANNULUS_INT32,       ANNULUS_UINT32,      ANNULUS_INT64,     ANNULUS_UINT64,
                                       ANNULUS_FLOAT16,     ANNULUS_FLOAT32,     ANNULUS_FLOAT64,   ANNULUS_BFLOAT16,
                                       ANNULUS_FLOAT8_E4M3, ANNULUS_FLOAT8_E5M2, ANNULUS_COMPLEX64, ANNULUS_COMPLEX128};
  constexpr annulus_op_t kOps[] = {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_MIN, ANNULUS_MAX, ANNULUS_AVG};
  OnRanks(3, [&](annulus_comm_t* comm, int rank) {
    for (const annulus_type_t type : kTypes) {
      for (const annulus_op_t op : kOps) {
        const bool is_complex = type == ANNULUS_COMPLEX64 || type == ANNULUS_COMPLEX128;
        if (is_complex && (op == ANNULUS_MIN || op == ANNULUS_MAX)) continue;
        Compare(comm, {Kind::kAllreduce, type, op, 40'000 / annulus_type_bytes(type) + 3}, rank, 3, 0, 1);
      }
    }
  });
}

TEST(SharedFoldTest, CountsAndPlacesOfAllKinds) {
  for (const int nranks : {2, 4}) {
    OnRanks(nranks, [&](annulus_comm_t* comm, int rank) {
      for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllgather}) {
        for (const size_t count : {size_t{1}, size_t{4'097}, size_t{8'192}, size_t{50'000}}) {
          // Ranks whose buffers are aligned differently.
          Compare(comm, {kind, ANNULUS_FLOAT32, ANNULUS_SUM, count}, rank, nranks, 0, static_cast<size_t>(rank) % 3);
        }
      }
      Compare(comm, {Kind::kAllreduce, ANNULUS_FLOAT32, ANNULUS_SUM, kCount, true}, rank, nranks, 0, 0);
    });
  }
}

TEST(SharedFoldTest, HostMemoryOnOneRankOrAnotherGpuGoesTheOtherWay) {
  OnRanks(3, [&](annulus_comm_t* comm, int rank) {
    const Call call{Kind::kAllreduce, ANNULUS_FLOAT32, ANNULUS_SUM, kCount};
    Compare(comm, call, rank, 3, rank == 1 ? -1 : 0, 0);
    Compare(comm, call, rank, 3, rank == 2 ? 1 : 0, 0);
    Compare(comm, call, rank, 3, -1, 0);
  });
}

TEST(SharedFoldTest, MixesOfCallsAndMessagesStayInOrder) {
  cuda::FakeControl* const fake = LoadDriver();
  OnRanks(3, [&](annulus_comm_t* comm, int rank) {
    for (int round = 0; round < 5; ++round) {
      Compare(comm, {Kind::kAllreduce, ANNULUS_INT32, ANNULUS_SUM, kCount}, rank, 3, 0, 0);
      std::vector<int32_t> numbers(20, rank + round);
      EXPECT_EQ(annulus_allreduce(comm, numbers.data(), numbers.data(), 20, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK);
      EXPECT_EQ(numbers[19], 3 + 3 * round);
      Compare(comm, {Kind::kAllgather, ANNULUS_INT32, ANNULUS_SUM, kCount}, rank, 3, 0, 0);
    }
  });
  EXPECT_EQ(fake->Counts().mappings, 0) << "of a process's own memory";
}

}  // namespace
}  // namespace annulus
