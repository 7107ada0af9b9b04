// A GPU that cannot wait for words of 64 bits, and a driver without user objects, as $LACKS says: captures are refused
// with the reason, and calls in streams go on.
#include <cstdlib>

#include "tests/collectives/graphs/graph_ranks.h"

namespace annulus::graphs {
namespace {

TEST(CudaGraphRefusedTest, CapturesAreRefusedAndLiveCallsGoOn) {
  const std::string lacks = std::getenv("LACKS") != nullptr ? std::getenv("LACKS") : "";
  ASSERT_NE(lacks, "");
  const bool is_word = lacks == "words of 64 bits";
  cuda::FakeOptions options;
  options.waits_for_64_bits = !is_word;
  if (!is_word) options.missing = lacks;
  LoadDriver()->Reset(options);
  Cluster(Ranks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const cuda::Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    UserGraph graph(stream, [&] {
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_UNSUPPORTED);
      EXPECT_NE(LastMessage().find("captured into a graph"), std::string::npos) << LastMessage();
      EXPECT_NE(LastMessage().find(is_word ? lacks : "too old"), std::string::npos) << LastMessage();
    });
    graph.Launch(stream);
    user.Fill(stream, memory, rank + 1, kBytes);
    Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == Bytes(3));
  });
  ExpectNothingWrong();
}

}  // namespace
}  // namespace annulus::graphs
