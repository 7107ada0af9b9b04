// Large collectives in streams in which the ranks do not agree that such calls are folds, but which are done as folds
// once they have: broadcasts, reductions to a root, gathers, scatters and all-to-alls. All on the stand-in for the
// driver.
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_BROADCAST, ANNULUS_CALL_REDUCE, ANNULUS_CALL_GATHER,
                                     ANNULUS_CALL_SCATTER, ANNULUS_CALL_ALLTOALL};

class StreamFoldKindsTest : public testing::Test {
 protected:
  void SetUp() override {
    LoadDriver();
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
  void TearDown() override { EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>()); }
};

// Runs the ranks, whose calls in the stream are folds from the start unless they do not agree.
template <class Test>
void OnRanks(const ClusterConfig& config, bool agree, Test test) {
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    if (agree) Agree(comm, &user, stream);
    test(comm, rank, &user, stream);
    ASSERT_TRUE(user.Drain(stream));
  });
}

TEST_F(StreamFoldKindsTest, EachHasTheBitsOfHostMemoryWhereverBuffersLie) {
  constexpr Where kPlaces[] = {Where::kDevice, Where::kHostInput, Where::kHostOutput, Where::kHost, Where::kPinned};
  for (const int nranks : {2, 3, 5}) {
    if (kSanitized && nranks != 3) continue;
    OnRanks(FoldingRanks(nranks), true, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      for (const annulus_kind_t kind : kKinds) {
        for (const size_t count : {size_t{2'048}, size_t{8'191}, size_t{30'001}}) {
          for (size_t i = 0; i < std::size(kPlaces); ++i) {
            const Where where = kPlaces[i == 0 ? 0 : (i + static_cast<size_t>(rank)) % std::size(kPlaces)];
            const int root = static_cast<int>(i + count) % nranks;
            Compare(comm, {count, ANNULUS_FLOAT32, ANNULUS_SUM, where, 1, kind, nranks, root}, rank, user, stream);
          }
        }
        Compare(comm, {999, ANNULUS_COMPLEX128, ANNULUS_PROD, Where::kDevice, 0, kind, nranks, 1}, rank, user, stream);
        Compare(comm, {5'000, ANNULUS_BFLOAT16, ANNULUS_AVG, Where::kDevice, 0, kind, nranks, 0}, rank, user, stream);
      }
    });
  }
}

// Launches of kernels, and copies of all ranks together: none goes through host memory.
TEST_F(StreamFoldKindsTest, EachTakesTheCopiesThatItNeedsAndReductionsOneKernel) {
  constexpr int kRanks = 3;
  constexpr size_t kBytes = 10'000;
  struct Needs {
    int launches;
    int copies;
  };
  const auto needs = [](annulus_kind_t kind) -> Needs {
    switch (kind) {
      case ANNULUS_CALL_BROADCAST:
        return {0, 1 + kRanks};
      case ANNULUS_CALL_REDUCE:
        return {1, kRanks + 1};
      case ANNULUS_CALL_GATHER:
      case ANNULUS_CALL_SCATTER:
        return {0, kRanks + kRanks};
      default:
        return {0, 2 * kRanks * kRanks};
    }
  };
  OnRanks(FoldingRanks(kRanks), true, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    std::byte* const in = user->Allocate(kRanks * kBytes);
    std::byte* const out = user->Allocate(kRanks * kBytes);
    for (const annulus_kind_t kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << ", rank " << rank);
      annulus_barrier(comm);
      const cuda::FakeCounts before = user->fake()->Counts();
      annulus_barrier(comm);
      EXPECT_EQ(InStream(comm, stream, kind, in, out, kBytes, 1), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(user->Drain(stream));
      annulus_barrier(comm);
      const cuda::FakeCounts after = user->fake()->Counts();
      EXPECT_EQ(after.launches - before.launches, needs(kind).launches);
      EXPECT_EQ(after.copies - before.copies, needs(kind).copies);
      annulus_barrier(comm);
    }
  });
}

// Calls of all kinds follow each other in several streams; pieces of one do not overwrite what another still reads.
TEST_F(StreamFoldKindsTest, CallsOfAllKindsFollowEachOther) {
  OnRanks(FoldingRanks(3), true, [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    const Stream streams[] = {stream, user->NewStream(), user->NewStream()};
    std::vector<std::unique_ptr<SumInStream>> calls;
    for (int i = 0; i < (kSanitized ? 8 : 14); ++i) {
      const annulus_kind_t kind =
          i % 3 == 2 ? ANNULUS_CALL_ALLREDUCE : kKinds[static_cast<size_t>(i) % std::size(kKinds)];
      const StreamSum sum{
          static_cast<size_t>(5'000 + 3'000 * i), ANNULUS_FLOAT32, ANNULUS_SUM, Where::kDevice, 0, kind, 3, i % 3};
      calls.push_back(std::make_unique<SumInStream>(comm, sum, rank, user, streams[i % 3]));
    }
    for (const Stream each : streams) ASSERT_TRUE(user->Drain(each));
    for (const auto& call : calls) call->Compare();
  });
}

// They are not folds before the ranks have agreed, however many there are, and do not disturb the agreement.
TEST_F(StreamFoldKindsTest, BeforeTheRanksHaveAgreedTheyGoThroughHostMemory) {
  OnRanks(FoldingRanks(2), false, [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    for (int i = 0; i < kCallsToAgree; ++i) {
      const annulus_kind_t kind = kKinds[static_cast<size_t>(i) % std::size(kKinds)];
      Compare(comm, {3'000, ANNULUS_FLOAT32, ANNULUS_SUM, Where::kDevice, 0, kind, 2, i % 2}, rank, user, stream);
    }
    for (int i = 0; i < 2 * kCallsToAgree; ++i) {
      const annulus_kind_t kind =
          i % 2 == 0 ? ANNULUS_CALL_ALLREDUCE : kKinds[static_cast<size_t>(i / 2) % std::size(kKinds)];
      Compare(comm, {3'000, ANNULUS_FLOAT32, ANNULUS_SUM, Where::kDevice, 0, kind, 2, i % 2}, rank, user, stream);
    }
    const cuda::FakeCounts before = user->fake()->Counts();
    annulus_barrier(comm);
    Compare(comm, {3'000, ANNULUS_FLOAT32, ANNULUS_SUM, Where::kDevice, 0, ANNULUS_CALL_REDUCE, 2, 1}, rank, user,
            stream);
    annulus_barrier(comm);
    EXPECT_EQ(user->fake()->Counts().launches - before.launches, 1);
  });
}

}  // namespace
}  // namespace annulus
