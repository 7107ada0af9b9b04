// Mistakes in graphs, which the stand-in for CUDA's driver makes in the library's place: each is found by what the
// other tests of calls in graphs look at. And GPUs and drivers that cannot have such calls.
#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

using cuda::Mistake;
using cuda::Stream;

constexpr size_t kBytes = 100'000;

constexpr int kRanks = 2;

// What a program sees that launches sums while the stand-in makes a mistake.
struct Seen {
  bool is_right = true;
  bool drains = true;  // After an abort.
};

Seen LaunchOnRank(annulus_comm_t* comm, int rank, bool is_healthy) {
  Seen seen;
  StreamUser user;
  const Stream stream = user.NewStream();
  std::byte* const in = user.Allocate(kBytes);
  std::byte* const out = user.Allocate(kBytes);
  UserGraph graph(stream, [&] {
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, in, out, kBytes), ANNULUS_OK) << LastMessage();
  });
  const int rounds = is_healthy ? 10 : 100;  // On a busy machine a mistake may do no harm for a while.
  for (int round = 0; round < rounds && seen.is_right; ++round) {
    user.Fill(stream, in, round + rank, kBytes);
    graph.Launch(stream);
    EXPECT_TRUE(user.Drain(stream));
    seen.is_right = user.Read(out, kBytes) == std::vector<int>(kBytes, 2 * round + 1);
  }
  EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
  graph.Launch(stream);
  const Deadline until = DeadlineAfter(is_healthy ? 60 * kSecond : kSecond / 2);
  while (user.IsBusy(stream) && Now() < until) std::this_thread::yield();
  seen.drains = !user.IsBusy(stream);
  user.fake()->Make(Mistake::kNone);
  EXPECT_TRUE(user.Drain(stream));
  return seen;
}

Seen LaunchWith(Mistake mistake) {
  cuda::FakeControl* const fake = LoadDriver();
  Seen seen[kRanks];
  ClusterConfig config;
  config.nranks = kRanks;
  fake->Make(mistake);
  Cluster(config).Run(
      [&](annulus_comm_t* comm, int rank) { seen[rank] = LaunchOnRank(comm, rank, mistake == Mistake::kNone); });
  EXPECT_TRUE(ComesTrue([&] { return fake->Counts().pending == 0; }));
  return {seen[0].is_right && seen[1].is_right, seen[0].drains && seen[1].drains};
}

TEST(CudaGraphMistakesTest, WithoutOneNothingIsFound) {
  const Seen seen = LaunchWith(Mistake::kNone);
  EXPECT_TRUE(seen.is_right && seen.drains);
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

TEST(CudaGraphMistakesTest, AGateThatIsNotClosedAgainIsFound) { EXPECT_FALSE(LaunchWith(Mistake::kNoReset).is_right); }

TEST(CudaGraphMistakesTest, AGateThatIsNotOpenedForGoodIsFound) {
  EXPECT_FALSE(LaunchWith(Mistake::kHalfWords).drains);
}

TEST(CudaGraphMistakesTest, AMissingGateIsFound) { EXPECT_FALSE(LaunchWith(Mistake::kNoGate).is_right); }

}  // namespace
}  // namespace annulus
