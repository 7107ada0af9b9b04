// Mistakes in the order of streams, which the stand-in for CUDA's driver makes in the library's place: each is found by
// what the other tests of stream-ordered calls look at.
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

using cuda::Mistake;
using cuda::Stream;

constexpr size_t kBytes = 100'000;

// What a program sees that sums in a stream while the stand-in makes a mistake.
struct Seen {
  bool drains = true;
  bool is_right = true;
  size_t violations = 0;
};

Seen SumWith(Mistake mistake) {
  cuda::FakeControl* const fake = LoadDriver();
  const size_t before = fake->Violations().size();
  Seen seen;
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const in = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kBytes);
    std::byte* const kept = user.Allocate(kBytes);
    fake->Make(mistake);
    // The GPU is ahead of the ranks as far as its gates let it.
    const int rounds = mistake == Mistake::kNone ? 10 : 100;  // On a busy machine a mistake may do no harm for a while.
    for (int round = 0; round < rounds && seen.drains && seen.is_right; ++round) {
      fake->Hold(true);
      annulus_request_t* request = nullptr;
      user.Fill(stream, in, round + 1, kBytes);
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, in, out, kBytes, 0, &request), ANNULUS_OK);
      user.Copy(stream, kept, out, kBytes);
      fake->Hold(false);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      const Deadline until = DeadlineAfter(mistake == Mistake::kClosedGate ? kSecond / 2 : 60 * kSecond);
      while (user.IsBusy(stream) && Now() < until) std::this_thread::yield();
      seen.drains = !user.IsBusy(stream);
      if (seen.drains) seen.is_right &= user.Read(kept, kBytes) == std::vector<int>(kBytes, round + 1);
    }
    fake->Make(Mistake::kNone);
    // A stream that has not waited for the library's leaves work in that.
    EXPECT_TRUE(ComesTrue([&] { return fake->Counts().pending == 0; }));
  });
  seen.violations = fake->Violations().size() - before;
  return seen;
}

TEST(CudaStreamMistakesTest, WithoutOneNothingIsFound) {
  const Seen seen = SumWith(Mistake::kNone);
  EXPECT_TRUE(seen.drains && seen.is_right);
  EXPECT_EQ(seen.violations, 0U);
}

TEST(CudaStreamMistakesTest, AMissingWaitForAnEventIsFound) { EXPECT_GT(SumWith(Mistake::kNoEvent).violations, 0U); }

TEST(CudaStreamMistakesTest, AMissingGateIsFound) { EXPECT_FALSE(SumWith(Mistake::kNoGate).is_right); }

TEST(CudaStreamMistakesTest, AGateThatStaysClosedIsFound) { EXPECT_FALSE(SumWith(Mistake::kClosedGate).drains); }

}  // namespace
}  // namespace annulus
