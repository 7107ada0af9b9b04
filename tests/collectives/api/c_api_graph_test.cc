// Calls that are captured into CUDA graphs, through the C API on the stand-in for CUDA's driver: every launch does them
// again, with the data of that moment, in the order that the ranks share.
#include "tests/collectives/api/user_graph.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kBytes = 3000;  // A multiple of every number of ranks here.
constexpr int kRanks = 3;

ClusterConfig Ranks(int nranks = kRanks, const char* transport = "shm") {
  LoadDriver();
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = transport;
  return config;
}

std::vector<int> Bytes(int value, size_t bytes = kBytes) { return std::vector<int>(bytes, value % 256); }

void ExpectNothingWrong() {
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// Nothing is left of communicators and graphs that are gone. Places of graphs go with the next communicator that ends.
void ExpectNothingLeft() {
  ExpectNothingWrong();
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().user_objects == 0; }));
  Cluster(Ranks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    std::byte* const memory = user.Allocate(64);
    const Stream stream = user.NewStream();
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64), ANNULUS_OK) << LastMessage();
    EXPECT_TRUE(user.Drain(stream));
  });
  const cuda::FakeCounts counts = LoadDriver()->Counts();
  EXPECT_EQ(counts.graphs, 0);
  EXPECT_EQ(counts.streams, 0);
  EXPECT_EQ(counts.events, 0);
  EXPECT_EQ(counts.pinned_ranges, 0);
}

void Submit(annulus_comm_t* comm, Stream stream, annulus_kind_t kind, const void* in, void* out, size_t count,
            int root = 0) {
  EXPECT_EQ(InStream(comm, stream, kind, in, out, count, root), ANNULUS_OK) << LastMessage();
}

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

// Ranks come to the branches in different orders.
TEST(CudaGraphTest, ParallelBranchesCannotReorderTheRanks) {
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
TEST(CudaGraphTest, MessagesInBranchesDoNotWaitForEachOther) {
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
TEST(CudaGraphTest, LaunchesAndLiveCallsTakeTurnsInOneStream) {
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

TEST(CudaGraphTest, GraphsWithCallsOfTwoCommunicators) {
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

// Larger than what is a fold where streams are not captured; the ranks' agreement on folds goes on beside the launches.
TEST(CudaGraphTest, LargeCallsAreNoCandidatesForFolds) {
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
}  // namespace annulus
