// Sums: a graph with sums of one buffer, all in one stream.
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/graphs/user_graph.h"

namespace annulus {

// A graph with `calls` sums of one buffer.
struct Sums {
  static constexpr size_t kBytes = 3000;

  Sums(annulus_comm_t* comm, StreamUser* user, int calls = 2, size_t bytes = kBytes)
      : stream(user->NewStream()), memory(user->Allocate(bytes)), graph(stream, [&] {
          for (int i = 0; i < calls; ++i) {
            EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, bytes), ANNULUS_OK)
                << LastMessage();
          }
        }) {
    user->Fill(stream, memory, 1, bytes);
  }
  void Launch() { graph.Launch(stream); }

  const cuda::Stream stream;
  std::byte* const memory;
  UserGraph graph;
};

}  // namespace annulus
