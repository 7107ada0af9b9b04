// Launches that would wait for ever, or for what is none of theirs: the communicator ends, and every stream goes on.
#include <atomic>
#include <string>
#include <thread>

#include "tests/collectives/graphs/graph_sums.h"
#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kBytes = Sums::kBytes;

// As when a node was left out of the graph: the launch never comes to the call that is before it.
TEST(CudaGraphWaitsTest, ALaunchThatWaitsForItsTurnIsToldByTheDeadlineAndBlocksNoStream) {
  constexpr int64_t kTimeoutMs = 1500;
  Cluster(StreamRanks(2, kTimeoutMs)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    const Stream branch = user.NewStream();
    std::byte* const memory = user.Allocate(2 * kBytes);
    UserGraph graph(stream, [&] {
      Follow(user, branch, stream);
      user.Hold(stream);
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK);
      std::byte* const other = memory + kBytes;
      EXPECT_EQ(InStream(comm, branch, ANNULUS_CALL_BROADCAST, other, other, kBytes), ANNULUS_OK);
      Follow(user, stream, branch);
    });
    graph.Launch(stream);
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_ABORTED);
    const std::string why = Verdict(comm).message;
    EXPECT_NE(why.find("waited 1500 ms for its turn at broadcast: no launch came to allreduce"), std::string::npos)
        << why;
    EXPECT_TRUE(user.IsBusy(stream)) << "with what the program put there";
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
    for (int i = 0; i < 3; ++i) graph.Launch(stream);
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

// An operation of the user's, whose release function takes its time.
struct SlowRelease {
  static int32_t Add(const void* left, const void* right, void* out, size_t count, annulus_type_t, void*) {
    for (size_t i = 0; i < count; ++i)
      static_cast<uint8_t*>(out)[i] =
          static_cast<uint8_t>(static_cast<const uint8_t*>(left)[i] + static_cast<const uint8_t*>(right)[i]);
    return 0;
  }
  static void Release(void* context) {
    auto* const self = static_cast<SlowRelease*>(context);
    self->begun.store(true);
    const Deadline until = DeadlineAfter(20 * kSecond);
    while (!self->may_end.load() && Now() < until) std::this_thread::yield();
    self->was_let.store(self->may_end.load());
    self->ended.store(true);
  }

  std::atomic<bool> begun{false};
  std::atomic<bool> may_end{false};
  std::atomic<bool> was_let{false};
  std::atomic<bool> ended{false};
};

TEST(CudaGraphWaitsTest, NoLaunchWaitsForAReleaseFunction) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    Sums sums(comm, &user);
    SlowRelease slow;
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create(comm, SlowRelease::Add, &slow, SlowRelease::Release, &op), ANNULUS_OK);
    {
      const Stream stream = user.NewStream();
      UserGraph graph(stream, [&] {
        Calls calls;
        AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, sums.memory, sums.memory, kBytes).op = op;
        ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
      });
      ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK);
      EXPECT_FALSE(slow.begun.load()) << "the graph has it";
    }
    EXPECT_TRUE(ComesTrue([&] { return slow.begun.load(); }));
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    slow.may_end.store(true);
    EXPECT_TRUE(ComesTrue([&] { return slow.ended.load(); }));
    EXPECT_TRUE(slow.was_let.load()) << "the launch waited for it";
  });
  ExpectNothingWrong();
}

// The last test: the stand-in does not forget what was done wrong.
TEST(CudaGraphWaitsTest, TwoExecutableGraphsAtATimeAreToldAndBlockNoStream) {
  Tally captured;
  Tally told;
  Cluster(StreamRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    const Stream other = user.NewStream();
    // In host memory, so that nothing is copied while ranks work on it.
    std::byte* const memory = user.AllocatePinned(kBytes);
    UserGraph graph(
        stream, [&] { EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK); });
    cuda::GraphExec second = nullptr;
    ASSERT_EQ(Graphs().GraphInstantiateWithFlags(&second, graph.graph(), 0), cuda::Result::kSuccess);
    captured.Add();
    ASSERT_TRUE(captured.WaitFor(2)) << "nothing is captured once the communicator has ended";
    if (rank == 0) {
      graph.Launch(stream);
      EXPECT_EQ(Graphs().GraphLaunch(second, other), cuda::Result::kSuccess);
    }
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_ABORTED);
    const std::string why = Verdict(comm).message;
    EXPECT_NE(why.find("two executable graphs"), std::string::npos) << why;
    for (int i = 0; i < 3; ++i) graph.Launch(stream);
    EXPECT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Drain(other));
    EXPECT_EQ(Graphs().GraphExecDestroy(second), cuda::Result::kSuccess);
    told.Add();
    ASSERT_TRUE(told.WaitFor(2));
  });
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
  for (const std::string& violation : LoadDriver()->Violations())
    EXPECT_EQ(violation, "work in two streams at a time that needs an order") << "which is what the program did";
}

}  // namespace
}  // namespace annulus
