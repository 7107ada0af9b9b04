// A program with a call in a stream forks, and the child ends at once: the stream of the program waits as before. On
// the stand-in for the driver, whose pinned memory a child shares, as that of the real one.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kBytes = 1000;

// A child that ends as programs do. False: it did not come to its end.
bool ForkAndExit() {
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  const bool has_ended = ComesTrue([&] { return waitpid(child, nullptr, WNOHANG) == child; });
  if (!has_ended) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  return has_ended;
}

TEST(StreamForkTest, AChildThatExitsOpensNoGate) {
  LoadDriver();
  Tally forked;
  ClusterConfig config;
  config.nranks = 2;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const cuda::Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    user.Fill(stream, memory, 1 + rank, kBytes);
    if (rank == 1) {
      ASSERT_TRUE(forked.WaitFor(1));
    }
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
    if (rank == 0) {
      EXPECT_TRUE(ForkAndExit());
      EXPECT_TRUE(user.IsBusy(stream)) << "rank 1 has not made the call";
      forked.Add();
    }
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == std::vector<int>(kBytes, 3));
  });
}

}  // namespace
}  // namespace annulus
