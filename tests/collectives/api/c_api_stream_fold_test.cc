// Large collectives in streams that the ranks of a host do in memory of the GPU that they share: what the GPU does for
// them, the bits of the same call on host memory, buffers anywhere, and ranks that cannot. All on the stand-in for the
// driver.
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

class StreamFoldTest : public testing::Test {
 protected:
  void SetUp() override {
    LoadDriver();
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
  void TearDown() override { EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>()); }
};

// Runs the ranks, whose calls in the stream are folds from the start.
template <class Test>
void OnRanks(const ClusterConfig& config, Test test) {
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    Agree(comm, &user, stream);
    test(comm, rank, &user, stream);
    ASSERT_TRUE(user.Drain(stream));
  });
}

// What one more call of all ranks adds.
cuda::FakeCounts CountCall(int nranks, size_t bytes) {
  cuda::FakeCounts added;
  OnRanks(FoldingRanks(nranks), [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    std::byte* const memory = user->Allocate(bytes);
    annulus_barrier(comm);
    const cuda::FakeCounts before = user->fake()->Counts();
    annulus_barrier(comm);
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, bytes), ANNULUS_OK);
    EXPECT_TRUE(user->Drain(stream));
    annulus_barrier(comm);
    const cuda::FakeCounts after = user->fake()->Counts();
    if (rank != 0) return;
    added.launches = after.launches - before.launches;
    added.slices = after.slices - before.slices;
    added.copies = after.copies - before.copies;
  });
  return added;
}

TEST_F(StreamFoldTest, ACallIsOneLaunchAndACopyEachWayOnEachRank) {
  for (const int nranks : {2, 3, 5}) {
    if (kSanitized && nranks == 2) continue;
    const cuda::FakeCounts one = CountCall(nranks, 60'000);
    EXPECT_EQ(one.launches, 1) << nranks << " ranks";
    EXPECT_EQ(one.slices, nranks);
    EXPECT_EQ(one.copies, 2 * nranks);
    const cuda::FakeCounts three = CountCall(nranks, 2 * kPieceBytes + 1);
    EXPECT_EQ(three.launches, 3);
    EXPECT_EQ(three.copies, 3 * 2 * nranks);
  }
}

TEST_F(StreamFoldTest, EveryTypeAndOperationHasTheBitsOfHostMemory) {
  OnRanks(FoldingRanks(3), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    for (int type = 0; annulus_type_bytes(static_cast<annulus_type_t>(type)) > 0; ++type) {
      for (const annulus_op_t op : {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_MIN, ANNULUS_MAX, ANNULUS_AVG}) {
        const auto as_type = static_cast<annulus_type_t>(type);
        const bool is_complex = as_type == ANNULUS_COMPLEX64 || as_type == ANNULUS_COMPLEX128;
        if (is_complex && (op == ANNULUS_MIN || op == ANNULUS_MAX)) continue;
        if (as_type == ANNULUS_BOOL && op == ANNULUS_AVG) continue;
        Compare(comm, {40'000 / annulus_type_bytes(as_type) + 3, as_type, op, Where::kDevice, 1}, rank, user, stream);
      }
    }
    for (const annulus_op_t op : {ANNULUS_BAND, ANNULUS_BOR, ANNULUS_BXOR})
      Compare(comm, {10'001, ANNULUS_INT32, op}, rank, user, stream);
  });
}

TEST_F(StreamFoldTest, CallsOfAllSizesArePieces) {
  for (const int nranks : {2, 4}) {
    if (kSanitized && nranks == 4) continue;
    OnRanks(FoldingRanks(nranks), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      constexpr size_t kPiece = kPieceBytes / sizeof(float);
      for (const size_t count :
           {size_t{600}, kPiece - 1, kPiece, kPiece + 1, 2 * kPiece, 3 * kPiece + 7, (kSanitized ? 6 : 10) * kPiece}) {
        Compare(comm, {count}, rank, user, stream);
        Compare(comm, {count, ANNULUS_FLOAT32, ANNULUS_SUM, Where::kInPlace}, rank, user, stream);
      }
      Compare(comm, {kPieceBytes / 2, ANNULUS_COMPLEX128}, rank, user, stream);
    });
  }
}

TEST_F(StreamFoldTest, BuffersMayLieAnywhereOnEachRank) {
  constexpr Where kPlaces[] = {Where::kDevice,     Where::kInPlace, Where::kHostInput,
                               Where::kHostOutput, Where::kHost,    Where::kPinned};
  OnRanks(FoldingRanks(3), [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    for (size_t i = 0; i < 2 * std::size(kPlaces); ++i) {
      const Where where = kPlaces[(i + static_cast<size_t>(rank)) % std::size(kPlaces)];
      const size_t count = i < std::size(kPlaces) ? 5'000 : 50'001;
      Compare(comm, {count, ANNULUS_FLOAT32, ANNULUS_SUM, where}, rank, user, stream);
    }
  });
}

TEST_F(StreamFoldTest, ReduceScattersAndAllgathersAreFoldsToo) {
  for (const int nranks : {2, 3}) {
    if (kSanitized && nranks == 2) continue;
    OnRanks(FoldingRanks(nranks), [nranks](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      constexpr Where kPlaces[] = {Where::kDevice, Where::kHostInput, Where::kHostOutput, Where::kHost, Where::kPinned};
      for (const annulus_kind_t kind : {ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER}) {
        for (const size_t count : {size_t{1'000}, size_t{8'191}, size_t{30'001}}) {
          for (size_t i = 0; i < std::size(kPlaces); ++i) {
            const Where where = kPlaces[i == 0 ? 0 : (i + static_cast<size_t>(rank)) % std::size(kPlaces)];
            Compare(comm, {count, ANNULUS_FLOAT32, ANNULUS_SUM, where, 1, kind, nranks}, rank, user, stream);
          }
        }
        Compare(comm, {999, ANNULUS_COMPLEX128, ANNULUS_PROD, Where::kDevice, 0, kind, nranks}, rank, user, stream);
        Compare(comm, {5'000, ANNULUS_BFLOAT16, ANNULUS_AVG, Where::kDevice, 0, kind, nranks}, rank, user, stream);
      }
    });
  }
}

TEST_F(StreamFoldTest, AReduceScatterIsOneLaunchAndAnAllgatherNone) {
  constexpr int kRanks = 3;
  constexpr size_t kBytes = 10'000;
  OnRanks(FoldingRanks(kRanks), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    std::byte* const memory = user->Allocate(kRanks * kBytes);
    std::byte* const own = memory + static_cast<size_t>(rank) * kBytes;
    for (const bool gathers : {false, true}) {
      annulus_barrier(comm);
      const cuda::FakeCounts before = user->fake()->Counts();
      annulus_barrier(comm);
      // In place.
      EXPECT_EQ(gathers ? InStream(comm, stream, ANNULUS_CALL_ALLGATHER, own, memory, kBytes)
                        : InStream(comm, stream, ANNULUS_CALL_REDUCE_SCATTER, memory, own, kBytes),
                ANNULUS_OK)
          << LastMessage();
      EXPECT_TRUE(user->Drain(stream));
      annulus_barrier(comm);
      const cuda::FakeCounts after = user->fake()->Counts();
      EXPECT_EQ(after.launches - before.launches, gathers ? 0 : 1);
      EXPECT_EQ(after.copies - before.copies, kRanks * (1 + kRanks));
      annulus_barrier(comm);
    }
  });
}

// What one stream still does is not overwritten by the next.
TEST_F(StreamFoldTest, CallsInSeveralStreamsFollowEachOther) {
  OnRanks(FoldingRanks(3), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream) {
    const Stream streams[] = {user->NewStream(), user->NewStream(0), user->NewStream()};
    for (int round = 0; round < (kSanitized ? 2 : 5); ++round) {
      std::vector<std::unique_ptr<SumInStream>> calls;
      for (int i = 0; i < 9; ++i) {
        const size_t count = 2'000 + 7'000 * static_cast<size_t>(i);
        calls.push_back(std::make_unique<SumInStream>(comm, StreamSum{count}, rank, user, streams[i % 3]));
      }
      for (const Stream stream : streams) ASSERT_TRUE(user->Drain(stream));
      for (const auto& call : calls) call->Compare();
    }
  });
}

TEST_F(StreamFoldTest, AStreamOfAnotherGpuTakesPart) {
  Cluster(FoldingRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Agree(comm, &user, user.NewStream());
    StreamUser other(rank);
    const Stream stream = other.NewStream();
    for (int i = 0; i < 20; ++i) Compare(comm, {20'000}, rank, &other, stream);
  });
}

TEST_F(StreamFoldTest, OtherCallsGoTheOtherWayInBetween) {
  OnRanks(FoldingRanks(3), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    std::byte* const memory = user->Allocate(30'000);
    for (int round = 0; round < 4; ++round) {
      user->Fill(stream, memory, 1, 30'000);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 100), ANNULUS_OK);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 10'000), ANNULUS_OK);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_BROADCAST, memory, memory, 30'000), ANNULUS_OK);
      Calls group;
      for (int i = 0; i < 3; ++i) {
        std::byte* const part = memory + i * 10'000;
        AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, part, part, 10'000);
      }
      ASSERT_EQ(group.Submit(comm, nullptr), ANNULUS_OK);
      ASSERT_TRUE(user->Drain(stream));
      EXPECT_EQ(user->Read(memory, 1)[0], 27);
      EXPECT_EQ(user->Read(memory + 9'999, 1)[0], 9);
      EXPECT_EQ(user->Read(memory + 29'999, 1)[0], 3);
      Compare(comm, {9'000}, rank, user, stream);
    }
  });
}

// One rank finds that it cannot, before the ranks agree; all go the other way.
TEST_F(StreamFoldTest, ARankThatCannotShareItsMemoryLeadsAllTheOtherWay) {
  for (const char* function : {"cuMemAlloc", "cuIpcGetMemHandle", "cuEventCreate"}) {
    const int64_t launches = LoadDriver()->Counts().launches;
    Cluster(FoldingRanks(3)).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      const Stream stream = user.NewStream();
      std::byte* const memory = user.Allocate(100);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 100), ANNULUS_OK) << "makes the places";
      ASSERT_TRUE(user.Drain(stream));
      annulus_barrier(comm);
      if (rank == 0) user.fake()->Fail(function, cuda::Result::kOutOfMemory, 1);
      annulus_barrier(comm);
      Agree(comm, &user, stream);
      Compare(comm, {20'000}, rank, &user, stream);
    });
    EXPECT_EQ(LoadDriver()->Counts().launches, launches) << function;
  }
}

TEST_F(StreamFoldTest, SettingsLeaveItOut) {
  ClusterConfig configs[4];
  for (ClusterConfig& config : configs) config = FoldingRanks(2);
  configs[0].stream_fold_bytes = 0;
  configs[1].device_reduce = "cpu";
  configs[2].algorithm = "ring";
  configs[3].priorities = 1;
  for (const ClusterConfig& config : configs) {
    const int64_t launches = LoadDriver()->Counts().launches;
    OnRanks(config, [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      Compare(comm, {20'000}, rank, user, stream);
    });
    EXPECT_EQ(LoadDriver()->Counts().launches, launches);
  }
}

uint64_t GpuMemory(const annulus_comm_t* comm) {
  annulus_memory_t memory{};
  memory.struct_bytes = sizeof memory;
  EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
  return memory.gpu;
}

TEST_F(StreamFoldTest, WithoutSuchCallsNoMemoryIsTaken) {
  Cluster(FoldingRanks(2)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(1000);
    const int64_t before = user.fake()->Counts().allocations;
    for (int i = 0; i < kCallsToAgree; ++i)
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 1000), ANNULUS_OK);
    EXPECT_TRUE(user.Drain(stream));
    EXPECT_EQ(user.fake()->Counts().allocations, before);
    EXPECT_EQ(GpuMemory(comm), 0u);
  });
}

TEST_F(StreamFoldTest, MemoryIsToldAndGoesWithTheCommunicator) {
  const int64_t before = LoadDriver()->Counts().allocations;
  OnRanks(FoldingRanks(3), [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    Compare(comm, {20'000}, rank, user, stream);
    EXPECT_EQ(GpuMemory(comm), 2 * kPieceBytes);
  });
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
  EXPECT_EQ(LoadDriver()->Counts().allocations, before);
  EXPECT_EQ(LoadDriver()->Counts().events, 0);
  EXPECT_EQ(LoadDriver()->Counts().streams, 0);
}

}  // namespace
}  // namespace annulus
