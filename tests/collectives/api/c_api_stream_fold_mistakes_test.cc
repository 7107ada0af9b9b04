// Mistakes in the order of streams, which the stand-in for CUDA's driver makes in the library's place while calls are
// folds in shared memory: each is found by what the other tests of such folds look at.
#include <atomic>

#include "base/clock.h"
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

using cuda::Mistake;
using cuda::Stream;

constexpr int kRanks = 2;
constexpr size_t kBytes = 2 * kPieceBytes + 100;
constexpr int kRounds = 100;              // On a busy machine a mistake may do no harm for a while.
constexpr int64_t kNearTimeoutMs = 1000;  // Where gates stay closed, and ranks wait for each other's streams.

// What the ranks see that sum in a stream while the stand-in makes a mistake.
struct Seen {
  std::atomic<bool> ends = true;
  std::atomic<bool> is_right = true;
  std::atomic<bool> keeps_context = true;
  size_t violations = 0;

  bool any() const { return violations > 0 || !is_right || !keeps_context; }
};

void SumInRounds(annulus_comm_t* comm, StreamUser* user, Stream stream, Seen* seen) {
  std::byte* const in = user->Allocate(kBytes);
  std::byte* const out = user->Allocate(kBytes);
  std::byte* const kept = user->Allocate(kBytes);
  for (int round = 0; round < kRounds && seen->ends && seen->is_right; ++round) {
    annulus_request_t* request = nullptr;
    user->Fill(stream, in, round + 1, kBytes);
    const annulus_status_t given = InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, in, out, kBytes, 0, &request);
    if (user->has_lost_its_context()) seen->keeps_context = false;
    if (given != ANNULUS_OK) seen->ends = false;
    EXPECT_TRUE(given == ANNULUS_OK || !seen->keeps_context) << given;
    if (given != ANNULUS_OK) return;
    user->Copy(stream, kept, out, kBytes);
    if (annulus_request_wait(request, -1) != ANNULUS_OK) seen->ends = false;
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    if (!seen->ends) return;
    EXPECT_TRUE(user->Drain(stream));
    if (user->Read(kept, kBytes) != std::vector<int>(kBytes, kRanks * (round + 1))) seen->is_right = false;
    if (annulus_barrier(comm) != ANNULUS_OK) seen->ends = false;
  }
}

void SumWith(Mistake mistake, Seen* seen) {
  cuda::FakeControl* const fake = LoadDriver();
  const size_t before = fake->Violations().size();
  ClusterConfig config = FoldingRanks(kRanks);
  if (mistake == Mistake::kClosedGate) config.timeout_ms = kNearTimeoutMs;
  Tally agreed;
  Tally over;
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    Agree(comm, &user, stream);
    agreed.Add();
    ASSERT_TRUE(agreed.WaitFor(kRanks));
    if (mistake != Mistake::kNone) user.MayLoseItsContext();
    fake->Make(mistake);
    SumInRounds(comm, &user, stream, seen);
    if (user.has_lost_its_context()) seen->keeps_context = false;
    over.Add();
    ASSERT_TRUE(over.WaitFor(kRanks));
    fake->Make(Mistake::kNone);
    EXPECT_TRUE(user.Drain(stream));
  });
  EXPECT_TRUE(ComesTrue([&] { return fake->Counts().pending == 0; }));
  seen->violations = fake->Violations().size() - before;
}

class StreamFoldMistakesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
  Seen seen_;
};

TEST_F(StreamFoldMistakesTest, WithoutOneNothingIsFound) {
  SumWith(Mistake::kNone, &seen_);
  EXPECT_TRUE(seen_.ends && seen_.is_right);
  EXPECT_EQ(seen_.violations, 0U);
}

TEST_F(StreamFoldMistakesTest, AMissingWaitForAnEventIsFound) {
  SumWith(Mistake::kNoEvent, &seen_);
  EXPECT_TRUE(seen_.any());
}

TEST_F(StreamFoldMistakesTest, AMissingGateIsFound) {
  SumWith(Mistake::kNoGate, &seen_);
  EXPECT_TRUE(seen_.any());
}

TEST_F(StreamFoldMistakesTest, AGateThatStaysClosedIsFound) {
  SumWith(Mistake::kClosedGate, &seen_);
  EXPECT_FALSE(seen_.ends);
}

}  // namespace
}  // namespace annulus
