// Failures of communicators whose calls are ordered by streams: whatever happens, every stream goes on.
#include "collectives/api/process_state.h"
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kBytes = 3000;

// Three calls in one stream, of which nobody asks for the outcome.
void SubmitThree(annulus_comm_t* comm, StreamUser* user, Stream stream) {
  std::byte* const memory = user->Allocate(kBytes);
  user->Fill(stream, memory, 1, kBytes);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
  }
}

TEST(CudaStreamFaultsTest, AnAbortOpensTheGatesOfAllRanks) {
  Tally submitted;
  Cluster(StreamRanks(3)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    if (rank == 0) user.Hold(stream);
    if (rank != 2) SubmitThree(comm, &user, stream);
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(3));
    EXPECT_TRUE(rank != 2 || annulus_comm_abort(comm, "enough") == ANNULUS_OK);
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_ABORTED; }));
    EXPECT_TRUE(rank != 0 || user.IsBusy(stream)) << "with the user's own work";
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
    std::byte* const memory = user.Allocate(kBytes);
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_ABORTED);
  });
  ExpectNothingWrong();
}

TEST(CudaStreamFaultsTest, AnAbortOfARankAloneOpensItsGates) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    user.Hold(stream);
    SubmitThree(comm, &user, stream);
    EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

// The memory of the calls outlives the communicator until the stream has passed them.
TEST(CudaStreamFaultsTest, DestroyReturnsWhileStreamsAreBusyAndTheyGoOn) {
  for (const bool is_held : {false, true}) {
    Cluster(StreamRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      const Stream stream = user.NewStream();
      annulus_comm_t* own = nullptr;
      ASSERT_EQ(annulus_comm_dup(comm, &own), ANNULUS_OK);
      if (is_held) user.Hold(stream);
      if (rank == 0) SubmitThree(own, &user, stream);
      EXPECT_EQ(annulus_comm_destroy(own), ANNULUS_OK);
      EXPECT_TRUE(!is_held || user.IsBusy(stream));
      user.LetGo();
      EXPECT_TRUE(user.Drain(stream));
    });
  }
  // The next communicator that ends frees what the last one left behind.
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    SubmitThree(comm, &user, user.NewStream());
  });
  ExpectNothingWrong();
  EXPECT_EQ(LoadDriver()->Counts().streams, 0);
}

TEST(CudaStreamFaultsTest, ARankThatLeavesLosesNobodysStream) {
  Tally submitted;
  Cluster(StreamRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
    if (rank == 1) {
      EXPECT_TRUE(submitted.WaitFor(1)) << "a verdict would refuse calls that come later";
      return;
    }
    StreamUser user;
    const Stream stream = user.NewStream();
    SubmitThree(comm, &user, stream);
    submitted.Add();
    EXPECT_TRUE(user.Drain(stream));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_PEER_LOST);
  });
  ExpectNothingWrong();
}

TEST(CudaStreamFaultsTest, ARankWhoseStreamIsLateIsNamedAtTheDeadline) {
  constexpr int64_t kTimeoutMs = 1500;
  Cluster(StreamRanks(2, kTimeoutMs)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    if (rank == 1) user.Hold(stream);
    const Nanoseconds begin = Now();
    SubmitThree(comm, &user, stream);
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
    EXPECT_GE(Now() - begin, kTimeoutMs * kMillisecond * 9 / 10);
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    annulus_comm_verdict(comm, &error);
    EXPECT_EQ(error.status, ANNULUS_TIMEOUT);
    EXPECT_EQ(error.rank, 1) << error.message;
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

// A rank's own stream may be busy for longer than calls may take.
TEST(CudaStreamFaultsTest, TheDeadlineCountsFromWhenTheStreamHasCome) {
  constexpr int64_t kTimeoutMs = 1000;
  Tally looked;
  Cluster(StreamRanks(2, kTimeoutMs)).Run([&](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    user.Fill(stream, memory, 1, kBytes);
    user.Hold(stream);
    annulus_request_t* request = nullptr;
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes, 0, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, 2 * kTimeoutMs), ANNULUS_IN_PROGRESS);
    looked.Add();
    ASSERT_TRUE(looked.WaitFor(2));
    user.LetGo();
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

TEST(CudaStreamFaultsTest, ACallThatTheDriverRefusesDoesNothing) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    SubmitThree(comm, &user, stream);
    std::byte* const memory = user.Allocate(kBytes);
    // More often than there are places.
    for (int round = 0; round < 20; ++round) {
      for (const char* function : {"cuStreamWriteValue32", "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent"}) {
        user.fake()->Fail(function, cuda::Result::kNotSupported, round % 2);
        EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_UNSUPPORTED);
        EXPECT_NE(LastMessage().find(function), std::string::npos) << LastMessage();
      }
      user.fake()->Fail("cuStreamWaitValue32", cuda::Result::kNotSupported, 0);
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_UNSUPPORTED);
    }
    EXPECT_TRUE(user.Drain(stream));
    SubmitThree(comm, &user, stream);
    EXPECT_TRUE(user.Drain(stream));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_OK);
  });
  ExpectNothingWrong();
}

TEST(CudaStreamFaultsTest, AGpuThatCannotWriteWordsIsRefusedBeforeAnythingIsEnqueued) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kBytes);
    user.fake()->Fail("cuStreamWriteValue32", cuda::Result::kNotSupported, 3);
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_UNSUPPORTED);
    EXPECT_NE(LastMessage().find("cannot order calls by streams"), std::string::npos) << LastMessage();
    EXPECT_EQ(user.fake()->Counts().streams, 1) << "but the user's";
    SubmitThree(comm, &user, stream);
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

// What the reduction below uses.
struct Reentrant {
  annulus_comm_t* comm = nullptr;
  StreamUser* user = nullptr;
  Stream stream = nullptr;
  Tally submits;  // 1: all places are taken, and another thread submits one call more.
  annulus_status_t refusal = ANNULUS_OK;
};

int32_t SubmitInside(const void*, const void*, void*, size_t, annulus_type_t, void* context) {
  auto* const all = static_cast<Reentrant*>(context);
  EXPECT_TRUE(all->submits.WaitFor(1));
  all->refusal = InStream(all->comm, all->stream, ANNULUS_CALL_BARRIER, nullptr, nullptr, 0);
  all->user->LetGo();
  return 0;
}

TEST(CudaStreamFaultsTest, AReductionFunctionIsRefusedThoughAnotherThreadWaitsForAPlace) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    Reentrant all;
    all.comm = comm;
    all.user = &user;
    all.stream = user.NewStream();
    annulus_op_t op{};
    ASSERT_EQ(annulus_op_create(comm, SubmitInside, &all, nullptr, &op), ANNULUS_OK);
    int64_t number = 1;
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_allreduce_async(comm, &number, &number, 1, ANNULUS_INT64, op, &request), ANNULUS_OK);
    user.Hold(all.stream);
    Calls barrier;
    AddInStream(&barrier, all.stream, ANNULUS_CALL_BARRIER, nullptr, nullptr, 0).timeout_ms = 5000;
    for (int i = 0; i < 16; ++i) ASSERT_EQ(barrier.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    std::thread one_more([&] {
      all.submits.Add();
      EXPECT_EQ(barrier.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    });
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    one_more.join();
    EXPECT_TRUE(user.Drain(all.stream));
    EXPECT_EQ(all.refusal, ANNULUS_INVALID_ARGUMENT);
  });
  ExpectNothingWrong();
}

// Memory could not be pinned behind the gates of calls that are under way.
TEST(CudaStreamFaultsTest, FreePlacesGrowWithTheFirstOneThatMust) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    constexpr size_t kLarge = 200'000;
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kLarge);
    const auto pinned = [&] { return user.fake()->Counts().pinned_ranges; };
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kLarge), ANNULUS_OK) << LastMessage();
    ASSERT_TRUE(user.Drain(stream));
    annulus_memory_t warm{};
    warm.struct_bytes = sizeof warm;
    EXPECT_EQ(annulus_comm_memory(comm, &warm), ANNULUS_OK);
    const int64_t ranges = pinned();
    user.Hold(stream);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kLarge), ANNULUS_OK) << LastMessage();
    }
    annulus_memory_t full{};
    full.struct_bytes = sizeof full;
    EXPECT_EQ(annulus_comm_memory(comm, &full), ANNULUS_OK);
    EXPECT_EQ(full.staging, warm.staging);
    EXPECT_EQ(pinned(), ranges);
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
  });
  ExpectNothingWrong();
}

TEST(CudaStreamFaultsTest, PinnedMemoryIsCountedBoundedAndUsedAgain) {
  const auto staging = [](annulus_comm_t* comm) {
    annulus_memory_t memory{};
    memory.struct_bytes = sizeof memory;
    EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
    return memory.staging;
  };
  ClusterConfig config = StreamRanks(1);
  config.memory_bytes = 64 << 20;
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    constexpr size_t kLarge = 3 << 20;
    StreamUser user;
    const Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kLarge);
    user.Fill(stream, memory, 1, kLarge);
    const uint64_t before = staging(comm);
    uint64_t warm = 0;
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kLarge), ANNULUS_OK) << LastMessage();
      ASSERT_TRUE(user.Drain(stream));
      if (i == 0) warm = staging(comm);
    }
    EXPECT_EQ(staging(comm), warm);
    EXPECT_GE(warm, before + kLarge);
    std::byte* const huge = user.Allocate(80 << 20);
    EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, huge, huge, 80 << 20), ANNULUS_OUT_OF_MEMORY);
    EXPECT_NE(LastMessage().find("ANNULUS_MEMORY_BYTES"), std::string::npos) << LastMessage();
    EXPECT_EQ(staging(comm), warm);
  });
  ExpectNothingWrong();
}

// Drivers load kernels lazily, and lock everybody out until the GPU has done all its work.
TEST(CudaStreamFaultsTest, NobodyCallsTheDriverWhileACallIsUnderWay) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    if (rank == 0) user.Hold(stream);
    SubmitThree(comm, &user, stream);
    static Tally submitted;
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(2));
    if (rank != 0) return;
    std::thread loads([&] { user.fake()->WaitLocked(); });
    EXPECT_TRUE(ComesTrue([&] { return user.fake()->IsLocked(); }));
    user.LetGo();
    loads.join();
  });
  ExpectNothingWrong();
}

// As when the program exits.
TEST(CudaStreamFaultsTest, TheEndOfTheProcessOpensAllGates) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    static Tally drained;
    StreamUser user;
    const Stream stream = user.NewStream();
    if (rank == 0) {
      SubmitThree(comm, &user, stream);
      EXPECT_TRUE(user.IsBusy(stream));
      c_api::OfProcess().cuda->OpenGates();
      EXPECT_TRUE(user.Drain(stream));
    }
    drained.Add();
    ASSERT_TRUE(drained.WaitFor(2));
  });
  ExpectNothingWrong();
}

}  // namespace
}  // namespace annulus
