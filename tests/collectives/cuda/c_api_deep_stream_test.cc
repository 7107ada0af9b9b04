// Calls in streams with more work than a driver takes behind a closed gate, where it has the caller wait: the ranks
// must know of them by then. On the stand-in for the driver, which takes some pieces of work only.
#include <future>

#include "base/clock.h"
#include "cuda_kernels/driver/driver.h"
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kMostPending = 40;

class DeepStreamTest : public testing::Test {
 protected:
  void SetUp() override { LoadDriver()->Reset({.devices = 2, .most_pending = kMostPending}); }
  void TearDown() override { EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>()); }
};

// What a function that is told of the end of a call finds behind it in its stream.
struct Found {
  StreamUser* user;
  Stream stream;
  std::byte* memory;
  size_t bytes;
  std::promise<std::vector<int>> result;
};

void SynchronizeAndRead(void* context, annulus_status_t status) {
  auto* const found = static_cast<Found*>(context);
  EXPECT_EQ(status, ANNULUS_OK);
  const cuda::Driver& driver = found->user->driver();
  cuda::Device device = 0;
  cuda::Context primary = nullptr;
  EXPECT_EQ(driver->DeviceGet(&device, 0), cuda::Result::kSuccess);
  EXPECT_EQ(driver->DevicePrimaryCtxRetain(&primary, device), cuda::Result::kSuccess);
  {
    const cuda::ScopedContext scope(driver, primary);
    EXPECT_TRUE(scope.status().ok());
    EXPECT_EQ(driver->StreamSynchronize(found->stream), cuda::Result::kSuccess);
  }
  EXPECT_EQ(driver->DevicePrimaryCtxRelease(device), cuda::Result::kSuccess);
  found->result.set_value(found->user->Read(found->memory, found->bytes));
}

TEST_F(DeepStreamTest, AFoldOfManyPieces) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  Cluster(FoldingRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    Agree(comm, &user, stream);
    constexpr size_t kBytes = 30 * kPieceBytes + 100;
    std::byte* const memory = user.Allocate(kBytes);
    for (int round = 1; round < 4; ++round) {
      user.Fill(stream, memory, round + rank, kBytes);
      Calls calls;
      AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
      Found found{&user, stream, memory, kBytes, {}};
      calls.back().done = SynchronizeAndRead;
      calls.back().context = &found;
      ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(found.result.get_future().get() == std::vector<int>(kBytes, 2 * round + 1));
      ASSERT_TRUE(user.Drain(stream));
    }
  });
}

// Each with a copy before the gate and one behind it; `agree`: the ranks compare the calls before any data moves.
void SumManyTensors(bool agree) {
  ClusterConfig config;
  config.nranks = 3;
  config.check_calls = agree ? 1 : 0;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    constexpr int kTensors = 3 * kMostPending;
    constexpr size_t kBytes = 16;
    StreamUser user;
    const Stream stream = user.NewStream();
    std::vector<std::byte*> tensors(kTensors);
    Calls group;
    for (int i = 0; i < kTensors; ++i) {
      tensors[static_cast<size_t>(i)] = user.Allocate(kBytes);
      user.Fill(stream, tensors[static_cast<size_t>(i)], i % 20 + rank, kBytes);
      AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, tensors[static_cast<size_t>(i)],
                  tensors[static_cast<size_t>(i)], kBytes);
    }
    ASSERT_EQ(group.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    ASSERT_TRUE(user.Drain(stream));
    for (int i = 0; i < kTensors; ++i)
      EXPECT_TRUE(user.Read(tensors[static_cast<size_t>(i)], kBytes) == std::vector<int>(kBytes, 3 * (i % 20) + 3))
          << i;
  });
}

TEST_F(DeepStreamTest, AGroupOfManyTensors) { SumManyTensors(false); }

TEST_F(DeepStreamTest, AGroupOfManyTensorsOnWhichRanksAgreeFirst) { SumManyTensors(true); }

// The calls end while their rank still puts their outputs into the stream.
TEST_F(DeepStreamTest, ACallbackThatSynchronizesFindsTheResult) {
  ClusterConfig config;
  config.nranks = 2;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    constexpr size_t kTensors = 3 * kMostPending;
    constexpr size_t kBytes = 16;
    StreamUser user;
    const Stream stream = user.NewStream();
    Calls group;
    std::byte* last = nullptr;
    for (size_t i = 0; i < kTensors; ++i) {
      last = user.Allocate(kBytes);
      user.Fill(stream, last, 1 + rank, kBytes);
      AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, last, last, kBytes);
    }
    Found found{&user, stream, last, kBytes, {}};
    group.back().done = SynchronizeAndRead;
    group.back().context = &found;
    ASSERT_EQ(group.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    EXPECT_TRUE(found.result.get_future().get() == std::vector<int>(kBytes, 3));
    ASSERT_TRUE(user.Drain(stream));
  });
}

bool HasEnded(const annulus_comm_t* comm) {
  annulus_error_t verdict{};
  verdict.struct_bytes = sizeof verdict;
  EXPECT_EQ(annulus_comm_verdict(comm, &verdict), ANNULUS_OK);
  return verdict.status == ANNULUS_ABORTED;
}

// Its rank waits in the driver, and is let go when another rank ends the job.
TEST_F(DeepStreamTest, AnAbortLetsGoWhoeverWaitsInTheDriver) {
  ClusterConfig config;
  config.nranks = 2;
  config.timeout_ms = kFarTimeoutMs;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    if (rank == 1) {
      const Deadline soon = DeadlineAfter(100 * kMillisecond);  // By then rank 0 has come to the gate, or soon will.
      while (Now() < soon) std::this_thread::yield();
      EXPECT_EQ(annulus_comm_abort(comm, "enough"), ANNULUS_OK);
      return;
    }
    StreamUser user;
    const Stream stream = user.NewStream();
    Calls group;
    for (size_t i = 0; i < 3 * kMostPending; ++i) {
      std::byte* const tensor = user.Allocate(16);
      AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, tensor, tensor, 16);
    }
    group.Submit(comm, nullptr);
    EXPECT_TRUE(ComesTrue([&] { return HasEnded(comm); }));
    EXPECT_TRUE(user.Drain(stream));
  });
}

}  // namespace
}  // namespace annulus
