// The order of calls in CUDA graphs: among those of one graph, whatever branches they lie in, of several graphs, and
// beside live calls.
#include "tests/collectives/graphs/graph_ranks.h"
#include "tests/soak/rounds.h"

namespace annulus::graphs {
namespace {

using cuda::Stream;

// Ranks come to the branches in different orders.
TEST(CudaGraphOrderTest, ParallelBranchesCannotReorderTheRanks) {
  constexpr int kBranches = 4;
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* memory[kBranches];
    Stream branches[kBranches];
    for (int i = 0; i < kBranches; ++i) {
      memory[i] = user.Allocate(kBytes);
      branches[i] = user.NewStream();
    }
    std::byte* const other = user.Allocate(kBytes);
    UserGraph graph(stream, [&] {
      for (int i = 0; i < kBranches; ++i) {
        Follow(user, branches[i], stream);
        // A long branch for each rank in turn.
        for (int k = 0; k < (i == rank ? 5 : 0); ++k) user.Copy(branches[i], other, memory[i], kBytes);
        // Two calls, of a size of their own: a rank that took another one would end in a mismatch.
        const size_t count = kBytes - static_cast<size_t>(100 * i);
        Submit(comm, branches[i], ANNULUS_CALL_ALLREDUCE, memory[i], memory[i], count);
        Submit(comm, branches[i], ANNULUS_CALL_ALLREDUCE, memory[i], memory[i], count - 1);
      }
      for (const Stream branch : branches) Follow(user, stream, branch);
    });
    for (int round = 0; round < (kSanitized ? 5 : 100); ++round) {
      for (int i = 0; i < kBranches; ++i) user.Fill(stream, memory[i], i + 1, kBytes);
      graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      for (int i = 0; i < kBranches; ++i) {
        const size_t count = kBytes - static_cast<size_t>(100 * i) - 1;
        ASSERT_TRUE(user.Read(memory[i], count) == Bytes(9 * (i + 1), count)) << round << ", branch " << i;
      }
    }
  });
  ExpectNothingLeft();
}

// Each rank's send in one branch is what the other's receive in another branch waits for.
TEST(CudaGraphOrderTest, MessagesInBranchesDoNotWaitForEachOther) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    const Stream branch = user.NewStream();
    const int peer = 1 - rank;
    std::byte* const in = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kBytes);
    std::byte* const sum = user.Allocate(kBytes);
    UserGraph graph(stream, [&] {
      Follow(user, branch, stream);
      Submit(comm, branch, ANNULUS_CALL_RECV, nullptr, out, kBytes, peer);
      Submit(comm, branch, ANNULUS_CALL_ALLREDUCE, out, sum, kBytes);
      Submit(comm, stream, ANNULUS_CALL_SEND, in, nullptr, kBytes, peer);
      Follow(user, stream, branch);
    });
    for (int round = 0; round < (kSanitized ? 5 : 100); ++round) {
      user.Fill(stream, in, round + rank, kBytes);
      graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      ASSERT_TRUE(user.Read(out, kBytes) == Bytes(round + peer)) << round;
      ASSERT_TRUE(user.Read(sum, kBytes) == Bytes(2 * round + 1)) << round;
    }
  });
  ExpectNothingLeft();
}

// All in one stream, with nothing that waits on the host: live calls are queued long before the launches before them.
TEST(CudaGraphOrderTest, LaunchesAndLiveCallsTakeTurnsInOneStream) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kBytes);
    const int next = (rank + 1) % kRanks;
    const int last = (rank + kRanks - 1) % kRanks;
    const auto add = [&](size_t count) {
      Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, count);
      Calls both;
      AddInStream(&both, stream, ANNULUS_CALL_SEND, memory, nullptr, count, next);
      AddInStream(&both, stream, ANNULUS_CALL_RECV, nullptr, out, count, last);
      ASSERT_EQ(both.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
      user.Copy(stream, memory, out, count);
    };
    UserGraph graph(stream, [&] { add(kBytes); });
    UserGraph second(stream, [&] { add(kBytes - 1); });
    for (int round = 0; round < (kSanitized ? 3 : 30); ++round) {
      user.Fill(stream, memory, 1, kBytes);
      graph.Launch(stream);
      add(kBytes - 2);
      second.Launch(stream);
      graph.Launch(stream);
      add(kBytes - 3);
      annulus_request_t* request = nullptr;
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes - 4, 0, &request), ANNULUS_OK);
      // Whoever waits drives the launches too.
      if (round % 2 == 0) {
        EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
      }
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      ASSERT_TRUE(user.Drain(stream));
      const size_t least = kBytes - 4;
      ASSERT_TRUE(user.Read(memory, least) == Bytes(729, least)) << round;
    }
  });
  ExpectNothingLeft();
}

TEST(CudaGraphOrderTest, GraphsWithCallsOfTwoCommunicators) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_t* other = nullptr;
    ASSERT_EQ(annulus_comm_dup(comm, &other), ANNULUS_OK);
    {
      StreamUser user;
      const Stream stream = user.NewStream();
      const Stream branch = user.NewStream();
      std::byte* const a = user.Allocate(kBytes);
      std::byte* const b = user.Allocate(kBytes);
      UserGraph graph(stream, [&] {
        Follow(user, branch, stream);
        Submit(rank == 1 ? other : comm, branch, ANNULUS_CALL_ALLREDUCE, rank == 1 ? b : a, rank == 1 ? b : a, kBytes);
        Submit(rank == 1 ? comm : other, stream, ANNULUS_CALL_ALLREDUCE, rank == 1 ? a : b, rank == 1 ? a : b, kBytes);
        Follow(user, stream, branch);
      });
      for (int round = 0; round < (kSanitized ? 5 : 50); ++round) {
        user.Fill(stream, a, round + rank, kBytes);
        user.Fill(stream, b, round + 10 * rank, kBytes);
        graph.Launch(stream);
        ASSERT_TRUE(user.Drain(stream));
        ASSERT_TRUE(user.Read(a, kBytes) == Bytes(3 * round + 3)) << round;
        ASSERT_TRUE(user.Read(b, kBytes) == Bytes(3 * round + 30)) << round;
      }
    }
    EXPECT_EQ(annulus_comm_destroy(other), ANNULUS_OK);
  });
  ExpectNothingLeft();
}

// A receive from any rank, and an agreement, would not give way to a launch for which their stream waits.
TEST(CudaGraphOrderTest, WhatCouldNotGiveWayIsRefusedBesideGraphs) {
  Cluster(Ranks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const cuda::Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    UserGraph graph(stream, [&] { Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes); });
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_RECV, nullptr, memory, kBytes, ANNULUS_ANY_PEER),
              ANNULUS_UNSUPPORTED);
    EXPECT_NE(LastMessage().find("from any rank"), std::string::npos) << LastMessage();
    annulus_call_t call{};
    call.struct_bytes = sizeof call;
    call.kind = ANNULUS_CALL_ALLREDUCE;
    call.type = ANNULUS_UINT8;
    call.sendbuf = call.recvbuf = memory;
    call.count = kBytes;
    call.flags = ANNULUS_AGREE_FIRST;
    call.stream = stream;
    call.stream_kind = ANNULUS_STREAM_CUDA;
    EXPECT_EQ(annulus_submit(comm, &call, 1, nullptr), ANNULUS_UNSUPPORTED);
    EXPECT_NE(LastMessage().find("agree first"), std::string::npos) << LastMessage();
    user.Fill(stream, memory, rank + 1, kBytes);
    graph.Launch(stream);
    Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == Bytes(6));
  });
  ExpectNothingLeft();
}

// Larger than what is a fold where streams are not captured; the ranks' agreement on folds goes on beside the launches.
TEST(CudaGraphOrderTest, LargeCallsAreNoCandidatesForFolds) {
  constexpr size_t kLarge = size_t{2} << 20;
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kLarge);
    UserGraph graph(stream, [&] { Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kLarge); });
    for (int round = 0; round < (kSanitized ? 4 : 24); ++round) {
      user.Fill(stream, memory, 1 + rank, kLarge);
      graph.Launch(stream);
      Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kLarge);
      if (round % 2 == 0) graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      ASSERT_TRUE(user.Read(memory, kBytes) == Bytes(round % 2 == 0 ? 12 : 6)) << round;
    }
  });
  ExpectNothingLeft();
}

}  // namespace
}  // namespace annulus::graphs
