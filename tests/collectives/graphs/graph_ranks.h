// What tests of graphs share that go well: their ranks, the calls, and what must be left behind, which is nothing.
//
// Threads: any.
#pragma once

#include <vector>

#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/stream_ranks.h"

namespace annulus::graphs {

inline constexpr size_t kBytes = 3000;  // A multiple of every number of ranks here.
inline constexpr int kRanks = 3;

inline ClusterConfig Ranks(int nranks = kRanks, const char* transport = "shm") {
  ClusterConfig config = StreamRanks(nranks);
  config.transport = transport;
  return config;
}

inline std::vector<int> Bytes(int value, size_t bytes = kBytes) { return std::vector<int>(bytes, value % 256); }

// Nothing is left of communicators and graphs that are gone. Places of graphs go with the next communicator that ends.
inline void ExpectNothingLeft() {
  ExpectNothingWrong();
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().user_objects == 0; }));
  Cluster(Ranks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    std::byte* const memory = user.Allocate(64);
    const cuda::Stream stream = user.NewStream();
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64), ANNULUS_OK) << LastMessage();
    EXPECT_TRUE(user.Drain(stream));
  });
  const cuda::FakeCounts counts = LoadDriver()->Counts();
  EXPECT_EQ(counts.graphs, 0);
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(counts.events, 0);
  EXPECT_EQ(counts.pinned_ranges, 0);
}

inline void Submit(annulus_comm_t* comm, cuda::Stream stream, annulus_kind_t kind, const void* in, void* out,
                   size_t count, int root = 0) {
  EXPECT_EQ(InStream(comm, stream, kind, in, out, count, root), ANNULUS_OK) << LastMessage();
}

}  // namespace annulus::graphs
