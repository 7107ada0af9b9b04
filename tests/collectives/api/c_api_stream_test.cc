// Calls that a stream orders, through the C API on the stand-in for CUDA's driver: their order among the stream's other
// work, every kind of call, and what is refused. Values tell the order: each piece of work overwrites what the next one
// needs.
#include <atomic>

#include "tests/collectives/api/stream_user.h"
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

std::vector<int> Bytes(int value, size_t bytes = kBytes) { return std::vector<int>(bytes, value); }

// `rounds` times: fill, sum, keep the sum; with nothing that waits on the host in between.
void SumInTurn(annulus_comm_t* comm, StreamUser* user, Stream stream, int rank, int rounds) {
  std::byte* const in = user->Allocate(kBytes);
  std::byte* const out = user->Allocate(kBytes);
  std::vector<std::byte*> kept;
  for (int round = 0; round < rounds; ++round) {
    kept.push_back(user->Allocate(kBytes));
    user->Fill(stream, in, round + rank, kBytes);
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, in, out, kBytes), ANNULUS_OK) << LastMessage();
    user->Copy(stream, kept.back(), out, kBytes);
    user->Fill(stream, out, 77, kBytes);
  }
  ASSERT_TRUE(user->Drain(stream));
  for (int round = 0; round < rounds; ++round) {
    EXPECT_TRUE(user->Read(kept[static_cast<size_t>(round)], kBytes) == Bytes(kRanks * round + 3)) << round;
  }
}

TEST(CudaStreamTest, ACallComesAfterWhatTheStreamHeldAndBeforeWhatItGetsLater) {
  for (const char* transport : {"shm", "tcp"}) {
    Cluster(Ranks(kRanks, transport)).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      SumInTurn(comm, &user, user.NewStream(), rank, kSanitized ? 6 : 20);
      SumInTurn(comm, &user, user.NewStream(0), rank, 5);
    });
  }
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
  EXPECT_EQ(LoadDriver()->Counts().streams, 0) << "of communicators that are gone";
  EXPECT_EQ(LoadDriver()->Counts().events, 0);
}

TEST(CudaStreamTest, DefaultStreamsOrderCallsToo) {
  for (const Stream stream : {Stream{nullptr}, cuda::LegacyStream(), cuda::ThreadStream()}) {
    Cluster(Ranks()).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      SumInTurn(comm, &user, rank == 0 || stream == cuda::ThreadStream() ? stream : user.NewStream(), rank, 4);
    });
  }
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

TEST(CudaStreamTest, TheCallReturnsAtOnceAndBeginsWhenTheStreamHasComeToIt) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    user.Hold(stream);
    user.Fill(stream, memory, rank + 1, kBytes);
    annulus_request_t* request = nullptr;
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes, 0, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, 20), ANNULUS_IN_PROGRESS);
    EXPECT_EQ(annulus_request_test(request), ANNULUS_IN_PROGRESS);
    EXPECT_TRUE(user.IsBusy(stream));
    user.LetGo();
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == Bytes(3));
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// What rank `rank` has of a call, in which each rank's input holds its number plus one.
std::vector<int> Expected(annulus_kind_t kind, int rank, int root, size_t count) {
  std::vector<int> parts;
  for (int r = 0; r < kRanks; ++r) parts.insert(parts.end(), count, r + 1);
  switch (kind) {
    case ANNULUS_CALL_ALLGATHER:
    case ANNULUS_CALL_ALLTOALL:
      return parts;
    case ANNULUS_CALL_GATHER:
      return rank == root ? parts : Bytes(9, count);
    case ANNULUS_CALL_REDUCE:
      return Bytes(rank == root ? 6 : 9, count);
    case ANNULUS_CALL_BROADCAST:
    case ANNULUS_CALL_SCATTER:
      return Bytes(root + 1, count);
    default:
      return Bytes(6, count);
  }
}

TEST(CudaStreamTest, EveryCollectiveOnDevicePinnedAndPageableMemory) {
  constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_ALLREDUCE, ANNULUS_CALL_REDUCE_SCATTER, ANNULUS_CALL_ALLGATHER,
                                       ANNULUS_CALL_BROADCAST, ANNULUS_CALL_REDUCE,         ANNULUS_CALL_GATHER,
                                       ANNULUS_CALL_SCATTER,   ANNULUS_CALL_ALLTOALL,       ANNULUS_CALL_BARRIER};
  Cluster(Ranks()).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::vector<std::byte> pageable_in(kRanks * kBytes, static_cast<std::byte>(rank + 1));
    std::vector<std::byte> pageable_out(kRanks * kBytes);
    std::byte* const device_in = user.Allocate(kRanks * kBytes);
    std::byte* const pinned_in = user.AllocatePinned(kRanks * kBytes);
    for (std::byte* const in : {device_in, pinned_in}) user.Fill(stream, in, rank + 1, kRanks * kBytes);
    std::byte* const device_out = user.Allocate(kRanks * kBytes);
    std::byte* const pinned_out = user.AllocatePinned(kRanks * kBytes);
    for (std::byte* const in : {device_in, pinned_in, pageable_in.data()}) {
      for (std::byte* const out : {device_out, pinned_out, pageable_out.data()}) {
        for (const annulus_kind_t kind : kKinds) {
          const int root = rank >= 0 ? static_cast<int>(kind) % kRanks : 0;
          if (out == pageable_out.data()) {
            std::memset(out, 9, kBytes);
          } else {
            user.Fill(stream, out, 9, kBytes);
          }
          ASSERT_EQ(InStream(comm, stream, kind, in, out, kBytes, root), ANNULUS_OK) << LastMessage();
          ASSERT_TRUE(user.Drain(stream));
          if (kind == ANNULUS_CALL_BARRIER) continue;
          const std::vector<int> expected = Expected(kind, rank, root, kBytes);
          EXPECT_TRUE(user.Read(out, expected.size()) == expected) << "kind " << kind << ", rank " << rank;
        }
      }
    }
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// Parts with gaps between them, which must stay as they are.
TEST(CudaStreamTest, PartsOfDifferentSizesLeaveTheirGapsAlone) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    const size_t counts[] = {100, 0, 300};
    const size_t offsets[] = {50, 200, 400};
    std::byte* const in = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kBytes);
    user.Fill(stream, in, rank + 1, kBytes);
    user.Fill(stream, out, 9, kBytes);
    Calls calls;
    annulus_call_t& call = AddInStream(&calls, stream, ANNULUS_CALL_ALLGATHERV, in, out, counts[rank]);
    call.recvcounts = counts;
    call.recvoffsets = offsets;
    ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    ASSERT_TRUE(user.Drain(stream));
    std::vector<int> expected = Bytes(9);
    for (size_t i = 0; i < 100; ++i) expected[50 + i] = 1;
    for (size_t i = 0; i < 300; ++i) expected[400 + i] = 3;
    EXPECT_TRUE(user.Read(out, kBytes) == expected);
  });
}

TEST(CudaStreamTest, GroupsAndMessagesInAndOutOfStreams) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* in[4];
    std::byte* out[4];
    for (int i = 0; i < 4; ++i) {
      in[i] = user.Allocate(kBytes);
      out[i] = user.Allocate(kBytes);
      user.Fill(stream, in[i], 10 * i + rank, kBytes);
    }
    const int next = (rank + 1) % kRanks;
    const int last = (rank + kRanks - 1) % kRanks;
    Calls group;
    for (int i = 0; i < 2; ++i) AddInStream(&group, stream, ANNULUS_CALL_ALLREDUCE, in[i], out[i], kBytes);
    AddInStream(&group, stream, ANNULUS_CALL_SEND, in[2], nullptr, kBytes, next);
    AddInStream(&group, stream, ANNULUS_CALL_RECV, nullptr, out[2], kBytes, last);
    ASSERT_EQ(group.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    // A message behind one whose stream has not come keeps its place.
    int64_t number = rank;
    int64_t received = -1;
    annulus_request_t* sent = nullptr;
    user.Hold(stream);
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_SEND, in[3], nullptr, kBytes, next), ANNULUS_OK);
    ASSERT_EQ(annulus_send_async(comm, &number, 1, ANNULUS_INT64, next, &sent), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(sent, 5), ANNULUS_IN_PROGRESS);
    user.LetGo();
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_RECV, nullptr, out[3], kBytes, last), ANNULUS_OK);
    EXPECT_EQ(annulus_recv(comm, &received, 1, ANNULUS_INT64, last), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(received, last);
    EXPECT_EQ(annulus_request_wait(sent, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(sent), ANNULUS_OK);
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(out[0], kBytes) == Bytes(3));
    EXPECT_TRUE(user.Read(out[1], kBytes) == Bytes(33));
    EXPECT_TRUE(user.Read(out[2], kBytes) == Bytes(20 + last));
    EXPECT_TRUE(user.Read(out[3], kBytes) == Bytes(30 + last));
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

TEST(CudaStreamTest, ACallThatRanksAgreeOnFirstIsOrderedToo) {
  ClusterConfig config = Ranks();
  config.check_calls = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    SumInTurn(comm, &user, stream, rank, 3);
    // One on which they differ does nothing, and the stream goes on.
    std::byte* const memory = user.Allocate(kBytes);
    const size_t count = rank == 0 ? kBytes : kBytes - 1;
    annulus_request_t* request = nullptr;
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, count, 0, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_MISMATCH);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_TRUE(user.Drain(stream));
    SumInTurn(comm, &user, stream, rank, 3);
  });
}

TEST(CudaStreamTest, CallsOnWhichRanksDifferWriteNoOutput) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const in = user.Allocate(kBytes);
    std::byte* const out = user.Allocate(kRanks * kBytes);
    const auto differ = [&](annulus_kind_t kind, const std::byte* input) {
      Calls calls;
      const size_t count = rank == 0 ? kBytes : kBytes - 1;
      AddInStream(&calls, stream, kind, input, out, count).flags = ANNULUS_AGREE_FIRST;
      annulus_request_t* request = nullptr;
      ASSERT_EQ(calls.Submit(comm, &request), ANNULUS_OK) << LastMessage();
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_MISMATCH);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    };
    user.Fill(stream, in, 1, kBytes);
    for (int round = 0; round < 3; ++round) {
      // Leaves other bytes in the staging memory.
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLGATHER, in, out, kBytes), ANNULUS_OK) << LastMessage();
      user.Fill(stream, out, 50 + round, kRanks * kBytes);
      differ(ANNULUS_CALL_ALLREDUCE, in);
      differ(ANNULUS_CALL_ALLREDUCE, out);
      differ(ANNULUS_CALL_ALLGATHER, in);
      ASSERT_TRUE(user.Drain(stream));
      EXPECT_TRUE(user.Read(out, kRanks * kBytes) == Bytes(50 + round, kRanks * kBytes));
    }
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// Rank 0 chooses the next call by priority; one that waits for its stream must not wait for one behind it.
TEST(CudaStreamTest, CallsKeepTheirOrderWhereOthersHavePriorities) {
  ClusterConfig config = Ranks();
  config.priorities = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    user.Fill(stream, memory, 1, kBytes);
    user.Hold(stream);
    std::vector<annulus_request_t*> requests(6);
    for (size_t i = 0; i < requests.size(); ++i) {
      Calls calls;
      AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
      if (i % 3 == 1) calls.back().flags = ANNULUS_AGREE_FIRST;
      ASSERT_EQ(calls.Submit(comm, &requests[i]), ANNULUS_OK) << LastMessage();
      calls.back().flags = 0;
      calls.back().priority = i % 2 == 0 ? 1 : -1;
      EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
      EXPECT_NE(LastMessage().find("priority"), std::string::npos) << LastMessage();
      EXPECT_NE(LastMessage().find("stream"), std::string::npos) << LastMessage();
    }
    user.LetGo();
    for (annulus_request_t* const request : requests) {
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_TRUE(user.Read(memory, kBytes) == Bytes(729 % 256)) << "rank " << rank;
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

TEST(CudaStreamTest, CallsOfSeveralThreadsAndCommunicatorsInStreamsOfTheirOwn) {
  Cluster(Ranks()).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_t* others[2] = {};
    for (annulus_comm_t*& other : others) ASSERT_EQ(annulus_comm_dup(comm, &other), ANNULUS_OK);
    std::vector<std::thread> threads;
    for (annulus_comm_t* const each : {comm, others[0], others[1]}) {
      threads.emplace_back([each, rank] {
        StreamUser user;
        SumInTurn(each, &user, user.NewStream(), rank, kSanitized ? 3 : 10);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (annulus_comm_t* const other : others) EXPECT_EQ(annulus_comm_destroy(other), ANNULUS_OK);
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

TEST(CudaStreamTest, CallsBeyondThosePossibleWaitAndThenAreRefused) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(64);
    user.Fill(stream, memory, rank, 64);
    user.Hold(stream);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64), ANNULUS_OK);
    }
    Calls beyond;
    AddInStream(&beyond, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64).timeout_ms = 50;
    EXPECT_EQ(beyond.Submit(comm, nullptr), ANNULUS_TIMEOUT);
    EXPECT_NE(LastMessage().find("16 calls"), std::string::npos) << LastMessage();
    user.LetGo();
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64), ANNULUS_OK) << LastMessage(comm);
    }
    EXPECT_TRUE(user.Drain(stream));
  });
}

TEST(CudaStreamTest, WhatCannotBeDoneIsRefusedAndNothingHappens) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    const Stream other = user.NewStream();
    std::byte* const memory = user.Allocate(64);
    const auto refused = [&](const Calls& calls, annulus_status_t status, const std::string& words) {
      annulus_request_t* request = nullptr;
      EXPECT_EQ(calls.Submit(comm, &request), status) << words;
      EXPECT_EQ(request, nullptr);
      EXPECT_NE(LastMessage().find(words), std::string::npos) << LastMessage();
      EXPECT_FALSE(user.IsBusy(stream));
    };
    Calls one;
    AddInStream(&one, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 64);
    one.back().stream_kind = 2;
    refused(one, ANNULUS_UNSUPPORTED, "stream_kind");
    one.back().stream_kind = ANNULUS_STREAM_CUDA;
    EXPECT_EQ(annulus_run(comm, &one.front()), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage().find("annulus_submit"), std::string::npos) << LastMessage();
    Calls two;
    AddInStream(&two, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 32);
    AddInStream(&two, other, ANNULUS_CALL_ALLREDUCE, memory + 32, memory + 32, 32);
    refused(two, ANNULUS_INVALID_ARGUMENT, "same stream");
    std::thread([&] {
      one.back().stream = nullptr;
      EXPECT_EQ(one.Submit(comm, nullptr), ANNULUS_UNSUPPORTED);
      EXPECT_NE(LastMessage().find("no current GPU"), std::string::npos) << LastMessage();
    }).join();
    one.back().stream = stream;
    EXPECT_EQ(one.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    EXPECT_TRUE(user.Drain(stream));
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

}  // namespace
}  // namespace annulus
