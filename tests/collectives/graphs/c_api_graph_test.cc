// Calls that are captured into CUDA graphs, through the C API on the stand-in for CUDA's driver: every launch does them
// again, with the data of that moment.
#include "tests/collectives/graphs/graph_ranks.h"
#include "tests/soak/rounds.h"

namespace annulus::graphs {
namespace {

using cuda::Stream;

// Launches again and again, each with other inputs, with nothing that waits on the host in between.
void SumInTurn(annulus_comm_t* comm, StreamUser* user, int rank, int rounds) {
  const Stream stream = user->NewStream();
  std::byte* const in = user->Allocate(kBytes);
  std::byte* const out = user->Allocate(kBytes);
  std::byte* const kept = user->Allocate(kBytes);
  UserGraph graph(stream, [&] {
    Submit(comm, stream, ANNULUS_CALL_ALLREDUCE, in, out, kBytes);
    user->Copy(stream, kept, out, kBytes);
    user->Fill(stream, out, 77, kBytes);
  });
  for (int round = 0; round < rounds; ++round) {
    user->Fill(stream, in, round % 50 + rank, kBytes);
    graph.Launch(stream);
    // Most launches are ahead of the ranks.
    if (round % 7 != 0 && round + 1 < rounds) continue;
    ASSERT_TRUE(user->Drain(stream));
    ASSERT_TRUE(user->Read(kept, kBytes) == Bytes(kRanks * (round % 50) + 3)) << round;
  }
}

TEST(CudaGraphTest, AThousandLaunchesSumWhatIsThereThen) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster(Ranks(kRanks, transport)).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      SumInTurn(comm, &user, rank, kSanitized ? 40 : 1000);
      annulus_counters_t counters{};
      counters.struct_bytes = sizeof counters;
      EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
      EXPECT_EQ(counters.collectives, kSanitized ? 40U : 1000U);
    });
  }
  ExpectNothingLeft();
}

// What rank `rank` has of a call, in which each rank's input holds its number plus `first`.
std::vector<int> Expected(annulus_kind_t kind, int rank, int root, int first) {
  std::vector<int> parts;
  for (int r = 0; r < kRanks; ++r) parts.insert(parts.end(), kBytes, first + r);
  const int sum = kRanks * first + 3;
  switch (kind) {
    case ANNULUS_CALL_ALLGATHER:
    case ANNULUS_CALL_ALLTOALL:
      return parts;
    case ANNULUS_CALL_GATHER:
      return rank == root ? parts : Bytes(9);
    case ANNULUS_CALL_REDUCE:
      return Bytes(rank == root ? sum : 9);
    case ANNULUS_CALL_BROADCAST:
    case ANNULUS_CALL_SCATTER:
      return Bytes(root + first);
    default:
      return Bytes(sum);
  }
}

TEST(CudaGraphTest, EveryCollectiveOnDevicePinnedAndPageableMemory) {
  constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER,
                                       ANNULUS_CALL_BROADCAST, ANNULUS_CALL_REDUCE,         ANNULUS_CALL_GATHER,
                                       ANNULUS_CALL_SCATTER,   ANNULUS_CALL_ALLTOALL,       ANNULUS_CALL_BARRIER};
  Cluster(Ranks()).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::vector<std::byte> pageable_in(kRanks * kBytes);
    std::vector<std::byte> pageable_out(kRanks * kBytes);
    const auto fill = [&](std::byte* memory, int value, size_t bytes) {
      cuda::PointerPlace place;
      EXPECT_TRUE(user.driver().PlaceOf(memory, &place).ok());
      if (place.type == cuda::MemoryType::kNone) {
        std::memset(memory, value, bytes);
      } else {
        user.Fill(stream, memory, value, bytes);
      }
    };
    std::byte* const ins[] = {user.Allocate(kRanks * kBytes), user.AllocatePinned(kRanks * kBytes), pageable_in.data()};
    std::byte* const outs[] = {user.Allocate(kRanks * kBytes), user.AllocatePinned(kRanks * kBytes),
                               pageable_out.data()};
    for (std::byte* const in : ins) {
      for (std::byte* const out : outs) {
        for (const annulus_kind_t kind : kKinds) {
          const int root = static_cast<int>(kind) % kRanks;
          UserGraph graph(stream, [&] { Submit(comm, stream, kind, in, out, kBytes, root); });
          for (const int first : {1, 20, 41}) {
            fill(in, first + rank, kRanks * kBytes);
            fill(out, 9, kBytes);
            graph.Launch(stream);
            ASSERT_TRUE(user.Drain(stream));
            if (kind == ANNULUS_CALL_BARRIER) continue;
            const std::vector<int> expected = Expected(kind, rank, root, first);
            ASSERT_TRUE(user.Read(out, expected.size()) == expected) << "kind " << kind << ", rank " << rank;
          }
        }
      }
    }
  });
  ExpectNothingLeft();
}

TEST(CudaGraphTest, PartsOfDifferentSizesAreReadWhenTheyAreCaptured) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    size_t counts[] = {100, 0, 300};
    size_t offsets[] = {50, 200, 400};
    std::byte* const in = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kBytes);
    UserGraph graph(stream, [&] {
      Calls calls;
      annulus_call_t& call = AddInStream(&calls, stream, ANNULUS_CALL_ALLGATHERV, in, out, counts[rank]);
      call.recvcounts = counts;
      call.recvoffsets = offsets;
      const std::string label = "parts";
      call.label = label.c_str();
      ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    });
    for (int i = 0; i < kRanks; ++i) counts[i] = offsets[i] = 7;
    for (int round = 0; round < 3; ++round) {
      user.Fill(stream, in, 10 * round + rank + 1, kBytes);
      user.Fill(stream, out, 9, kBytes);
      graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      std::vector<int> expected = Bytes(9);
      for (size_t i = 0; i < 100; ++i) expected[50 + i] = 10 * round + 1;
      for (size_t i = 0; i < 300; ++i) expected[400 + i] = 10 * round + 3;
      ASSERT_TRUE(user.Read(out, kBytes) == expected);
    }
  });
  ExpectNothingLeft();
}

TEST(CudaGraphTest, GroupsAndMessages) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* in[4];
    std::byte* out[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = user.Allocate(kBytes);
      out[i] = user.Allocate(kBytes);
    }
    const int next = (rank + 1) % kRanks;
    const int last = (rank + kRanks - 1) % kRanks;
    UserGraph graph(stream, [&] {
      Calls group;
      for (int i = 0; i < 2; ++i) AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, in[i], out[i], kBytes);
      AddInStream(&group, stream, ANNULUS_CALL_SEND, in[2], nullptr, kBytes, next);
      AddInStream(&group, stream, ANNULUS_CALL_RECV, nullptr, out[2], kBytes, last);
      ASSERT_EQ(group.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
      // A message alone, and one from anybody.
      Submit(comm, stream, ANNULUS_CALL_SEND, in[3], nullptr, kBytes, next);
      Submit(comm, stream, ANNULUS_CALL_RECV, nullptr, out[3], kBytes, ANNULUS_ANY_PEER);
    });
    for (int round = 0; round < (kSanitized ? 5 : 100); ++round) {
      for (int i = 0; i < 4; ++i) user.Fill(stream, in[i], 10 * i + rank + round, kBytes);
      graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      ASSERT_TRUE(user.Read(out[0], kBytes) == Bytes(3 + 3 * round)) << round;
      ASSERT_TRUE(user.Read(out[1], kBytes) == Bytes(33 + 3 * round)) << round;
      ASSERT_TRUE(user.Read(out[2], kBytes) == Bytes(20 + last + round)) << round;
      ASSERT_TRUE(user.Read(out[3], kBytes) == Bytes(30 + last + round)) << round;
    }
  });
  ExpectNothingLeft();
}

int32_t Subtract(const void* left, const void* right, void* result, size_t count, annulus_type_t, void* context) {
  for (size_t i = 0; i < count; ++i) {
    static_cast<unsigned char*>(result)[i] = static_cast<unsigned char>(
        static_cast<const unsigned char*>(left)[i] + static_cast<const unsigned char*>(right)[i] + 1);
  }
  return *static_cast<int*>(context) == 5 ? 0 : 1;
}

TEST(CudaGraphTest, AnOperationOfTheUserStaysForTheGraph) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    int context = 5;
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create(comm, Subtract, &context, nullptr, &op), ANNULUS_OK);
    UserGraph graph(stream, [&] {
      Calls calls;
      AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes).op = op;
      ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    });
    ASSERT_EQ(annulus_op_destroy(comm, op), ANNULUS_OK) << LastMessage();
    for (int round = 0; round < 5; ++round) {
      user.Fill(stream, memory, round + rank, kBytes);
      graph.Launch(stream);
      ASSERT_TRUE(user.Drain(stream));
      ASSERT_TRUE(user.Read(memory, kBytes) == Bytes(3 * round + 3 + 2));
    }
  });
  ExpectNothingLeft();
}

TEST(CudaGraphTest, WhatCannotBeCapturedIsRefusedAndTheCaptureGoesOn) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    const auto refused = [&](const Calls& calls, annulus_request_t** request, annulus_status_t status,
                             const std::string& words) {
      EXPECT_EQ(calls.Submit(comm, request), status) << words;
      EXPECT_NE(LastMessage().find(words), std::string::npos) << LastMessage();
      EXPECT_NE(LastMessage().find("captured into a graph"), std::string::npos) << LastMessage();
    };
    UserGraph graph(stream, [&] {
      Calls one;
      annulus_call_t& call = AddInStream(&one, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
      annulus_request_t* request = nullptr;
      refused(one, &request, ANNULUS_INVALID_ARGUMENT, "request");
      EXPECT_EQ(request, nullptr);
      call.done = [](void*, annulus_status_t) {};
      refused(one, nullptr, ANNULUS_INVALID_ARGUMENT, "done");
      call.done = nullptr;
      Calls receive;
      annulus_received_t received{};
      received.struct_bytes = sizeof received;
      AddInStream(&receive, stream, ANNULUS_CALL_RECV, nullptr, memory, kBytes, 1 - rank).received = &received;
      refused(receive, nullptr, ANNULUS_INVALID_ARGUMENT, "received");
      EXPECT_EQ(one.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    });
    user.Fill(stream, memory, rank + 1, kBytes);
    graph.Launch(stream);
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == Bytes(3));
  });
  ExpectNothingLeft();
}

TEST(CudaGraphTest, CallsThatAgreeFirstAndPrioritiesAreRefused) {
  for (const bool agrees : {true, false}) {
    ClusterConfig config = Ranks(2);
    config.check_calls = agrees ? 1 : 0;
    config.priorities = agrees ? 0 : 1;
    Cluster(config).Run([&](annulus_comm_t* comm, int) {
      StreamUser user;
      const Stream stream = user.NewStream();
      std::byte* const memory = user.Allocate(kBytes);
      UserGraph graph(stream, [&] {
        EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_UNSUPPORTED);
        EXPECT_NE(LastMessage().find(agrees ? "agree" : "priorities"), std::string::npos) << LastMessage();
      });
      graph.Launch(stream);
      EXPECT_TRUE(user.Drain(stream));
    });
  }
  ExpectNothingLeft();
}

}  // namespace
}  // namespace annulus::graphs
