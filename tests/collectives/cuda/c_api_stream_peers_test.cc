// Large collectives in streams between the GPUs of a host, each rank with memory on its own or two on each: what the
// GPUs do for them, the bits of the same call on host memory, and GPUs that do not reach each other. All on the
// stand-in for the driver, in processes of their own, since GPUs reach each other or not as long as a process lives.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <vector>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/cuda/mapped_fold.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::FakeLink;
using cuda::FakeOptions;

FakeLink Pairs(int a, int b) { return a / 2 == b / 2 ? FakeLink::kNvlink : FakeLink::kPcie; }
FakeLink Islands(int a, int b) { return a / 2 == b / 2 ? FakeLink::kPcie : FakeLink::kNone; }

class StreamPeersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

struct Rank {
  annulus_comm_t* comm;
  int number;
  int nranks;
  StreamUser* user;
  cuda::Stream stream;
};

// Calls body(rank) for ranks that are threads of one process of their own; that number uses GPU `gpu_of(number)`.
template <class GpuOf, class Body>
void OnThreads(const FakeOptions& options, int nranks, GpuOf gpu_of, Body body) {
  InProcesses(1, [&](int) {
    cuda::FakeControl* const fake = LoadDriver(options);
    Cluster(FoldingRanks(nranks)).Run([&](annulus_comm_t* comm, int number) {
      StreamUser user(gpu_of(number), gpu_of(number));
      const cuda::Stream stream = user.NewStream();
      Agree(comm, &user, stream);
      body(Rank{comm, number, nranks, &user, stream});
      ASSERT_TRUE(user.Drain(stream));
      annulus_barrier(comm);
    });
    EXPECT_EQ(fake->Violations(), std::vector<std::string>());
  });
}

// The stand-in is slow where many ranks are threads of a process: then a part of it.
void CompareAll(const Rank& own) {
  constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER};
  constexpr size_t kPieces = 3 * kPieceBytes / sizeof(float) + 7;
  const bool has_many = own.nranks > 4;
  for (const annulus_kind_t kind : kKinds) {
    for (const Where where : {Where::kDevice, Where::kHostInput, Where::kHostOutput, Where::kPinned}) {
      if (has_many && where != Where::kDevice) continue;
      for (const size_t count : {size_t{9'001}, has_many ? size_t{1'001} : kPieces}) {
        StreamSum sum{count};
        sum.kind = kind;
        sum.where = where;
        sum.nranks = own.nranks;
        Compare(own.comm, sum, own.number, own.user, own.stream);
      }
    }
  }
  if (has_many) return;
  for (const annulus_type_t type : {ANNULUS_INT8, ANNULUS_BFLOAT16, ANNULUS_FLOAT64, ANNULUS_COMPLEX64}) {
    for (const annulus_op_t op : {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_AVG})
      Compare(own.comm, {5'003, type, op}, own.number, own.user, own.stream);
  }
}

// What one more allreduce adds to the launches of all ranks, which are threads.
int64_t LaunchesOfACall(const Rank& own) {
  constexpr size_t kBytes = 20'000;
  std::byte* const memory = own.user->Allocate(kBytes);
  annulus_barrier(own.comm);
  const int64_t before = own.user->fake()->Counts().launches;
  annulus_barrier(own.comm);
  EXPECT_EQ(InStream(own.comm, own.stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK);
  EXPECT_TRUE(own.user->Drain(own.stream));
  annulus_barrier(own.comm);
  const int64_t after = own.user->fake()->Counts().launches;
  annulus_barrier(own.comm);
  return after - before;
}

TEST_F(StreamPeersTest, TheFirstRankOnEachGpuFoldsAndAllFetchTheResults) {
  for (const int gpus : {2, 4}) {
    for (const int on_each : {1, 2}) {
      if (kSanitized && gpus * on_each > 4) continue;
      const auto gpu_of = [=](int number) { return on_each == 1 ? number : number % gpus; };
      OnThreads({.devices = gpus, .link = Pairs}, gpus * on_each, gpu_of, [=](const Rank& own) {
        EXPECT_EQ(LaunchesOfACall(own), gpus);
        CompareAll(own);
      });
    }
  }
}

TEST_F(StreamPeersTest, GpusThatDoNotReachEachOtherGoTheOtherWay) {
  OnThreads(
      {.devices = 3, .link = Islands}, 3, [](int number) { return number; },
      [](const Rank& own) {
        EXPECT_EQ(LaunchesOfACall(own), 0) << "the CPU reduces";
        CompareAll(own);
      });
}

TEST_F(StreamPeersTest, ProcessesMapTheMemoryOfOtherGpus) {
  for (const bool sees_all : {true, false}) {
    const Cluster cluster(FoldingConfig(3));
    InProcesses(3, [&](int number) {
      cuda::FakeControl* const fake =
          LoadDriver({.devices = sees_all ? 3 : 1, .first_device = sees_all ? 0 : number, .link = Pairs});
      const UserConfig config = cluster.Config(number);
      annulus_comm_t* comm = nullptr;
      ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
      {
        const int gpu = sees_all ? number : 0;
        StreamUser user(gpu, gpu);
        const cuda::Stream stream = user.NewStream();
        Agree(comm, &user, stream);
        const Rank own{comm, number, 3, &user, stream};
        EXPECT_EQ(LaunchesOfACall(own), 1) << "of this process";
        CompareAll(own);
        annulus_barrier(comm);
      }
      EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
      EXPECT_EQ(fake->Violations(), std::vector<std::string>());
      EXPECT_EQ(fake->Counts().mappings, 0);
    });
  }
}

// What it has submitted is on its GPU, and the others have its input or not.
TEST_F(StreamPeersTest, ARankThatDiesBlocksNoStream) {
  constexpr int kDies = 2;
  const Cluster first(FoldingConfig(3));
  const Cluster second(FoldingConfig(2));
  InProcesses(
      3,
      [&](int number) {
        cuda::FakeControl* const fake = LoadDriver({.devices = 3, .link = Pairs});
        StreamUser user(number, number);
        const cuda::Stream stream = user.NewStream();
        UserConfig config = first.Config(number);
        annulus_comm_t* comm = nullptr;
        ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
        Agree(comm, &user, stream);
        constexpr size_t kBytes = 40 * kPieceBytes;
        std::byte* const memory = user.Allocate(kBytes);
        EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK);
        if (number == kDies) kill(getpid(), SIGKILL);
        EXPECT_TRUE(user.Drain(stream));
        annulus_error_t verdict{};
        verdict.struct_bytes = sizeof verdict;
        ASSERT_TRUE(ComesTrue([&] {
          EXPECT_EQ(annulus_comm_verdict(comm, &verdict), ANNULUS_OK);
          return verdict.status == ANNULUS_PEER_LOST;
        }));
        EXPECT_EQ(verdict.rank, kDies);
        annulus_comm_destroy(comm);
        config = second.Config(number);
        ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
        Agree(comm, &user, stream);
        EXPECT_EQ(LaunchesOfACall({comm, number, 2, &user, stream}), 1);
        Compare(comm, {9'001}, number, &user, stream);
        annulus_barrier(comm);
        EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
        // A gate that a verdict has opened lets a fold read what others still write; nobody reads its result.
        std::vector<std::string> violations = fake->Violations();
        std::erase_if(violations, [](const std::string& each) { return each.ends_with(", in exports"); });
        EXPECT_EQ(violations, std::vector<std::string>());
      },
      kDies);
}

// Planted: what the library asks for is not done. The fold fails on the GPU; no stream waits for ever.
TEST_F(StreamPeersTest, AGpuThatWasNotLetInIsFound) {
  InProcesses(1, [](int) {
    cuda::FakeControl* const fake = LoadDriver({.devices = 2});
    fake->Make(cuda::Mistake::kNoPeer);
    ClusterConfig config = FoldingRanks(2);
    config.timeout_ms = 20'000;
    std::atomic<int> lost = 0;
    Cluster(config).Run([&](annulus_comm_t* comm, int number) {
      StreamUser user(number, number);
      user.MayLoseItsContext();
      const cuda::Stream stream = user.NewStream();
      std::byte* const memory = user.Allocate(4096);
      for (int i = 0; i < kCallsToAgree; ++i) {
        if (InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 4096) != ANNULUS_OK) break;
        EXPECT_TRUE(user.Drain(stream));
      }
      EXPECT_TRUE(user.Drain(stream));
      lost += user.driver()->StreamQuery(stream) == cuda::Result::kIllegalAddress ? 1 : 0;
    });
    EXPECT_EQ(lost, 2);
  });
}

}  // namespace
}  // namespace annulus
