// Failures of communicators whose calls are in CUDA graphs: whatever happens, every stream goes on, launches after the
// end too, and what graphs had is used again.
#include <string>
#include <thread>

#include "collectives/api/process_state.h"
#include "tests/collectives/graphs/graph_sums.h"
#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kBytes = Sums::kBytes;

annulus_memory_t Memory(annulus_comm_t* comm) {
  annulus_memory_t memory{};
  memory.struct_bytes = sizeof memory;
  EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
  return memory;
}
uint64_t Staging(annulus_comm_t* comm) { return Memory(comm).staging; }

TEST(CudaGraphFaultsTest, ALaunchTooManyIsToldByTheDeadlineAndBlocksNoStream) {
  constexpr int64_t kTimeoutMs = 1500;
  static Tally ended;
  Cluster(StreamRanks(2, kTimeoutMs)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Sums sums(comm, &user);
    for (int i = 0; i < (rank == 0 ? 4 : 3); ++i) sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream)) << "by the verdict, at the latest";
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_TIMEOUT);
    EXPECT_EQ(Verdict(comm).rank, 1) << Verdict(comm).message;
    for (int i = 0; i < 3; ++i) sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(2));
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, ALaunchWhereTheOthersMakeAnotherCallIsAMismatch) {
  static Tally ended;
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Sums sums(comm, &user);
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    if (rank == 0) {
      sums.Launch();
    } else {
      EXPECT_EQ(InStream(comm, sums.stream, ANNULUS_CALL_BROADCAST, sums.memory, sums.memory, 100), ANNULUS_OK);
    }
    EXPECT_TRUE(user.Drain(sums.stream));
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_MISMATCH) << Verdict(comm).message;
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(2));
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, AnAbortOpensTheGatesOfAllRanksForGood) {
  Tally launched;
  Cluster(StreamRanks(3)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Sums sums(comm, &user);
    if (rank != 2) sums.Launch();
    launched.Add();
    ASSERT_TRUE(launched.WaitFor(3));
    EXPECT_TRUE(rank != 2 || annulus_comm_abort(comm, "enough") == ANNULUS_OK);
    EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_ABORTED; }));
    EXPECT_TRUE(user.Drain(sums.stream));
    for (int i = 0; i < 10; ++i) sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    UserGraph later(sums.stream, [&] {
      EXPECT_EQ(InStream(comm, sums.stream, ANNULUS_CALL_ALLREDUCE, sums.memory, sums.memory, kBytes), ANNULUS_ABORTED);
    });
    later.Launch(sums.stream);
    EXPECT_TRUE(user.Drain(sums.stream));
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, AnAbortOfARankAloneOpensItsGatesForGood) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    Sums sums(comm, &user);
    user.Hold(sums.stream);
    sums.Launch();
    EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    user.LetGo();
    for (int i = 0; i < 10; ++i) sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, AGraphOutlivesItsCommunicator) {
  for (const bool is_held : {false, true}) {
    Cluster(StreamRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      annulus_comm_t* own = nullptr;
      ASSERT_EQ(annulus_comm_dup(comm, &own), ANNULUS_OK);
      Sums sums(own, &user);
      if (is_held) user.Hold(sums.stream);
      if (rank == 0) sums.Launch();
      EXPECT_EQ(annulus_comm_destroy(own), ANNULUS_OK);
      EXPECT_TRUE(!is_held || user.IsBusy(sums.stream));
      user.LetGo();
      EXPECT_TRUE(user.Drain(sums.stream));
      for (int i = 0; i < 10; ++i) sums.Launch();
      EXPECT_TRUE(user.Drain(sums.stream));
    });
  }
  // The next communicator that ends frees what graphs had.
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().user_objects == 0; }));
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    Sums sums(comm, &user);
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
  });
  ExpectNothingWrong();
  EXPECT_EQ(LoadDriver()->Counts().streams, 0);
}

TEST(CudaGraphFaultsTest, ARankThatLeavesLosesNobodysStream) {
  Tally launched;
  Cluster(StreamRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Sums sums(comm, &user);
    if (rank == 1) {
      EXPECT_TRUE(launched.WaitFor(1));
      return;
    }
    sums.Launch();
    launched.Add();
    EXPECT_TRUE(user.Drain(sums.stream));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_PEER_LOST);
    for (int i = 0; i < 10; ++i) sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
  });
  ExpectNothingWrong();
}

// A rank's own stream may be busy for longer than calls may take.
TEST(CudaGraphFaultsTest, TheDeadlineCountsFromWhenTheLaunchHasCome) {
  constexpr int64_t kTimeoutMs = 1000;
  Tally waited;
  Cluster(StreamRanks(2, kTimeoutMs)).Run([&](annulus_comm_t* comm, int) {
    StreamUser user;
    Sums sums(comm, &user);
    user.Hold(sums.stream);
    sums.Launch();
    const Deadline until = DeadlineAfter(2 * kTimeoutMs * kMillisecond);
    EXPECT_TRUE(ComesTrue([&] { return Now() > until; }));
    waited.Add();
    ASSERT_TRUE(waited.WaitFor(2));
    user.LetGo();
    EXPECT_TRUE(user.Drain(sums.stream));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_OK) << Verdict(comm).message;
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, WhatGraphsHadIsUsedAgain) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    const uint64_t before = Memory(comm).requests;
    uint64_t warm = 0;
    for (int round = 0; round < 20; ++round) {
      {
        Sums sums(comm, &user, 3);
        if (round % 2 == 0) sums.Launch();
        EXPECT_TRUE(user.Drain(sums.stream));
        const Stream stream = user.NewStream();
        // A capture that fails leaves nothing either: its branch never joins.
        cuda::Graph none = nullptr;
        ASSERT_EQ(Graphs().StreamBeginCapture(stream, cuda::CaptureMode::kThreadLocal), cuda::Result::kSuccess);
        const Stream branch = user.NewStream();
        Follow(user, branch, stream);
        EXPECT_EQ(InStream(comm, branch, ANNULUS_CALL_ALLREDUCE, sums.memory, sums.memory, kBytes), ANNULUS_OK);
        EXPECT_EQ(Graphs().StreamEndCapture(stream, &none), cuda::Result::kStreamCaptureUnjoined);
        if (round == 0) warm = Staging(comm);
        EXPECT_EQ(Staging(comm), warm) << round;
      }
      // The library learns of the end of each graph some time later.
      EXPECT_TRUE(ComesTrue([&] { return Memory(comm).requests == before; }));
    }
  });
  ExpectNothingWrong();
}

TEST(CudaGraphFaultsTest, PinnedMemoryIsCountedAndBounded) {
  ClusterConfig config = StreamRanks(1);
  config.memory_bytes = 64 << 20;
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    constexpr size_t kLarge = 3 << 20;
    StreamUser user;
    const uint64_t before = Staging(comm);
    Sums sums(comm, &user, 1, kLarge);
    const uint64_t warm = Staging(comm);
    EXPECT_GE(warm, before + kLarge);
    EXPECT_LE(warm, before + kLarge + 8192);
    const Stream stream = user.NewStream();
    std::byte* const huge = user.Allocate(80 << 20);
    UserGraph graph(stream, [&] {
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, huge, huge, 80 << 20), ANNULUS_OUT_OF_MEMORY);
      EXPECT_NE(LastMessage().find("ANNULUS_MEMORY_BYTES"), std::string::npos) << LastMessage();
    });
    EXPECT_EQ(Staging(comm), warm);
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
  });
  ExpectNothingWrong();
}

// Not every error ends a capture: what the graph has then must not wait for ranks that know nothing of it.
TEST(CudaGraphFaultsTest, ACallThatTheDriverRefusesBlocksNoLaunch) {
  Cluster(StreamRanks(1)).Run([](annulus_comm_t* comm, int) {
    StreamUser user;
    Sums sums(comm, &user);
    std::byte* const memory = user.Allocate(kBytes);
    const Stream stream = user.NewStream();
    for (const char* function :
         {"cuStreamGetCaptureInfo", "cuMemHostAlloc", "cuUserObjectCreate", "cuGraphRetainUserObject", "cuMemcpyAsync",
          "cuLaunchHostFunc", "cuStreamWaitValue64", "cuStreamWriteValue32"}) {
      UserGraph graph(stream, [&] {
        const bool is_pinned = std::string(function) == "cuMemHostAlloc";
        if (is_pinned) user.fake()->Fail("cuMemHostRegister", cuda::Result::kNotSupported, 0);
        user.fake()->Fail(function, is_pinned ? cuda::Result::kOutOfMemory : cuda::Result::kNotSupported, 0);
        // Of a size that no place has yet.
        const size_t count = is_pinned ? 100'000 : kBytes;
        std::byte* const buffer = is_pinned ? user.Allocate(count) : memory;
        EXPECT_NE(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, buffer, buffer, count), ANNULUS_OK) << function;
        EXPECT_NE(LastMessage().find(function), std::string::npos) << LastMessage();
      });
      for (int i = 0; i < 3; ++i) graph.Launch(stream);
      EXPECT_TRUE(user.Drain(stream)) << function;
    }
    sums.Launch();
    EXPECT_TRUE(user.Drain(sums.stream));
    EXPECT_EQ(Verdict(comm).status, ANNULUS_OK);
  });
  ExpectNothingWrong();
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().user_objects == 0; }));
}

// Drivers load kernels lazily, and lock everybody out until the GPU has done all its work.
TEST(CudaGraphFaultsTest, NobodyCallsTheDriverWhileALaunchIsUnderWay) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    Sums sums(comm, &user);
    if (rank == 0) user.Hold(sums.stream);
    for (int i = 0; i < 3; ++i) sums.Launch();
    static Tally launched;
    launched.Add();
    ASSERT_TRUE(launched.WaitFor(2));
    static Tally passed;
    if (rank == 0) {
      std::thread loads([&] { user.fake()->WaitLocked(); });
      EXPECT_TRUE(ComesTrue([&] { return user.fake()->IsLocked(); }));
      user.LetGo();
      loads.join();
    }
    passed.Add();
    ASSERT_TRUE(passed.WaitFor(2));
  });
  ExpectNothingWrong();
}

// As when the program exits.
TEST(CudaGraphFaultsTest, TheEndOfTheProcessOpensAllGatesForGood) {
  Cluster(StreamRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    static Tally captured;
    static Tally drained;
    StreamUser user;
    Sums sums(comm, &user);
    captured.Add();
    ASSERT_TRUE(captured.WaitFor(2));
    if (rank == 0) {
      sums.Launch();
      EXPECT_TRUE(user.IsBusy(sums.stream));
      c_api::OfProcess().cuda->OpenGates();
      // These overwrite what the ranks work on yet, which a sanitizer must not see.
      for (int i = 0; i < (kSanitized ? 0 : 3); ++i) sums.Launch();
      EXPECT_TRUE(user.Drain(sums.stream));
    }
    drained.Add();
    ASSERT_TRUE(drained.WaitFor(2));
  });
  ExpectNothingWrong();
}

}  // namespace
}  // namespace annulus
