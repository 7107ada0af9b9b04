// Failures of communicators whose calls in streams are folds in shared memory: whatever happens, every stream goes on,
// and nothing touches memory that is gone.
#include <array>
#include <atomic>

#include "base/clock.h"
#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr size_t kBytes = 2 * kPieceBytes + 100;

class StreamFoldFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    before_ = LoadDriver()->Violations().size();
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
  void TearDown() override {
    EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
    std::vector<std::string> violations = LoadDriver()->Violations();
    violations.erase(violations.begin(), violations.begin() + static_cast<ptrdiff_t>(before_));
    // What gates were opened for in vain may work in the shared memory at a time. It is nobody's then.
    if (fails_) std::erase_if(violations, [](const std::string& each) { return each.ends_with(", in exports"); });
    EXPECT_EQ(violations, std::vector<std::string>());
    // The next communicator that ends frees what the last one left behind.
    Cluster(FoldingRanks(1)).Run([](annulus_comm_t* comm, int) {
      StreamUser user;
      const Stream stream = user.NewStream();
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_BARRIER, nullptr, nullptr, 0), ANNULUS_OK);
      EXPECT_TRUE(user.Drain(stream));
    });
    EXPECT_EQ(LoadDriver()->Counts().streams, 0);
    EXPECT_EQ(LoadDriver()->Counts().mappings, 0);
  }

  bool fails_ = true;  // Whether a communicator does in the test.

 private:
  size_t before_ = 0;
};

void SubmitOne(annulus_comm_t* comm, StreamUser* user, Stream stream) {
  std::byte* const memory = user->Allocate(kBytes);
  user->Fill(stream, memory, 1, kBytes);
  EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
}

void SubmitThree(annulus_comm_t* comm, StreamUser* user, Stream stream) {
  std::byte* const memory = user->Allocate(kBytes);
  user->Fill(stream, memory, 1, kBytes);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
  }
}

// Ranks that have agreed.
template <class Test>
void OnRanks(int nranks, Test test, int64_t timeout_ms = kFarTimeoutMs) {
  ClusterConfig config = FoldingRanks(nranks);
  config.timeout_ms = timeout_ms;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    Agree(comm, &user, stream);
    test(comm, rank, &user, stream);
    user.LetGo();
    EXPECT_TRUE(user.Drain(stream));
  });
}

TEST_F(StreamFoldFaultsTest, AnAbortOpensTheGatesOfAllRanks) {
  for (const int held : {0, 1, 3}) {
    Tally submitted;
    OnRanks(3, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      if (rank == held) user->Hold(stream);
      if (rank != 2) SubmitThree(comm, user, stream);
      submitted.Add();
      ASSERT_TRUE(submitted.WaitFor(3));
      EXPECT_TRUE(rank != 2 || annulus_comm_abort(comm, "enough") == ANNULUS_OK);
      EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_ABORTED; }));
      user->LetGo();
      EXPECT_TRUE(user->Drain(stream));
      std::byte* const memory = user->Allocate(kBytes);
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_ABORTED);
    });
  }
}

TEST_F(StreamFoldFaultsTest, AnAbortBeforeTheRanksHaveAgreed) {
  Tally submitted;
  Cluster(FoldingRanks(2)).Run([&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    for (int i = 0; i < 5 && rank == 0; ++i) SubmitThree(comm, &user, stream);
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(2));
    EXPECT_TRUE(rank != 1 || annulus_comm_abort(comm, "enough") == ANNULUS_OK);
    EXPECT_TRUE(user.Drain(stream));
  });
}

TEST_F(StreamFoldFaultsTest, DestroyReturnsWhileStreamsAreBusyAndTheyGoOn) {
  for (const bool is_held : {false, true}) {
    for (const int submits : {0, 1}) {
      Tally submitted;
      OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
        annulus_comm_t* own = nullptr;
        ASSERT_EQ(annulus_comm_dup(comm, &own), ANNULUS_OK);
        Agree(own, user, stream);
        if (is_held) user->Hold(stream);
        if (rank == submits) {
          SubmitThree(own, user, stream);
          submitted.Add();
        }
        ASSERT_TRUE(submitted.WaitFor(1)) << "a verdict would refuse calls that come later";
        EXPECT_EQ(annulus_comm_destroy(own), ANNULUS_OK);
        EXPECT_TRUE(!is_held || user->IsBusy(stream));
        user->LetGo();
        EXPECT_TRUE(user->Drain(stream));
      });
    }
  }
}

uint64_t SleepsOf(const annulus_comm_t* comm) {
  annulus_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
  return counters.sleeps;
}

// The GPU stops in the middle of a call. One rank at least waits for its stream then, not for another rank, and does so
// asleep: it wakes now and then to look.
TEST_F(StreamFoldFaultsTest, ARankSleepsWhileItsStreamWorks) {
  fails_ = false;
  std::array<annulus_comm_t*, 2> comms{};
  std::atomic<bool> seen = false;
  OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    comms[static_cast<size_t>(rank)] = comm;
    const auto sleeps = [&] { return SleepsOf(comms[0]) + SleepsOf(comms[1]); };
    // A GPU that has done everything before it is stopped shows nothing.
    for (int tries = 0; tries < 20 && !seen; ++tries) {
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
      const int64_t launches = user->fake()->Counts().launches;
      SubmitThree(comm, user, stream);
      if (rank == 0) {
        EXPECT_TRUE(ComesTrue([&] { return user->fake()->Counts().launches > launches; }));
        user->fake()->Hold(true);
        const uint64_t before = sleeps();
        const Deadline end = DeadlineAfter(2 * kSecond);
        while (!seen && Now() < end) seen = sleeps() > before + 100;
        user->fake()->Hold(false);
      }
      EXPECT_TRUE(user->Drain(stream));
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    }
  });
  EXPECT_TRUE(seen);
}

// A request is done when the ranks are. Then others still take results from this rank's memory.
TEST_F(StreamFoldFaultsTest, ARankMayLeaveWhenItsRequestIsDone) {
  fails_ = false;
  for (int round = 0; round < (kSanitized ? 3 : 10); ++round) {
    Cluster(FoldingRanks(3)).Run([](annulus_comm_t* comm, int rank) {
      annulus_comm_t* own = nullptr;
      ASSERT_EQ(annulus_comm_dup(comm, &own), ANNULUS_OK);
      StreamUser user;
      const Stream stream = user.NewStream();
      Agree(own, &user, stream);
      std::byte* const memory = user.Allocate(kBytes);
      user.Fill(stream, memory, rank + 1, kBytes);
      annulus_request_t* request = nullptr;
      ASSERT_EQ(InStream(own, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes, 0, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(own);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      EXPECT_EQ(annulus_comm_destroy(own), ANNULUS_OK);
      ASSERT_TRUE(user.Drain(stream));
      EXPECT_TRUE(user.Read(memory, kBytes) == std::vector<int>(kBytes, 6));
    });
  }
}

TEST_F(StreamFoldFaultsTest, ARankThatLeavesLosesNobodysStream) {
  for (const int leaves : {0, 1}) {
    Tally submitted;
    OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      if (rank == leaves) {
        EXPECT_TRUE(submitted.WaitFor(1));
        return;
      }
      SubmitThree(comm, user, stream);
      submitted.Add();
      EXPECT_TRUE(user->Drain(stream));
      EXPECT_EQ(Verdict(comm).status, ANNULUS_PEER_LOST);
    });
  }
}

TEST_F(StreamFoldFaultsTest, ARankWhoseStreamIsLateIsNamedAtTheDeadline) {
  constexpr int64_t kTimeoutMs = 1500;
  for (const int late : {0, 1}) {
    OnRanks(
        2,
        [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
          if (rank == late) user->Hold(stream);
          SubmitThree(comm, user, stream);
          EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
          const annulus_error_t error = Verdict(comm);
          EXPECT_EQ(error.status, ANNULUS_TIMEOUT);
          EXPECT_EQ(error.rank, late) << error.message;
        },
        kTimeoutMs);
  }
}

TEST_F(StreamFoldFaultsTest, ARankThatMakesTheCallWithoutAStreamEndsIt) {
  for (const int differs : {0, 1}) {
    OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      if (rank == differs) {
        std::vector<std::byte> memory(kBytes);
        EXPECT_EQ(annulus_allreduce(comm, memory.data(), memory.data(), kBytes, ANNULUS_UINT8, ANNULUS_SUM),
                  ANNULUS_MISMATCH);
      } else {
        SubmitOne(comm, user, stream);  // Before a further one the communicator may have ended.
      }
      EXPECT_TRUE(user->Drain(stream));
      EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_MISMATCH; }));
      EXPECT_NE(std::string(Verdict(comm).message).find("without a stream"), std::string::npos)
          << Verdict(comm).message;
    });
  }
}

// Before the ranks have agreed such a call is done, and they agree only where all have streams.
TEST_F(StreamFoldFaultsTest, RanksWithoutAStreamDoNotAgree) {
  fails_ = false;
  const int64_t launches = LoadDriver()->Counts().launches;
  Cluster(FoldingRanks(2)).Run([](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const Stream stream = user.NewStream();
    std::vector<std::byte> host(kBytes, std::byte{1});
    std::byte* const memory = user.Allocate(kBytes);
    user.Fill(stream, memory, 1, kBytes);
    for (int i = 0; i < kCallsToAgree; ++i) {
      const annulus_status_t status =
          rank == 1 ? annulus_allreduce(comm, host.data(), host.data(), kBytes, ANNULUS_UINT8, ANNULUS_MAX)
                    : ANNULUS_OK;
      ASSERT_EQ(status, ANNULUS_OK) << LastMessage(comm);
      if (rank == 1) continue;
      Calls calls;
      AddInStream(&calls, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes).op = ANNULUS_MAX;
      ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << LastMessage();
    }
    ASSERT_TRUE(user.Drain(stream));
    EXPECT_EQ(user.Read(memory, 1)[0], 1);
  });
  EXPECT_EQ(LoadDriver()->Counts().launches, launches);
}

// The calls of both ranks are refused alike, wherever the driver fails; later ones are right.
TEST_F(StreamFoldFaultsTest, ACallThatTheDriverRefusesHarmsNoLaterOne) {
  OnRanks(2, [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    std::byte* const memory = user->Allocate(kBytes);
    for (const char* function :
         {"cuStreamWriteValue32", "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent", "cuStreamWaitValue32"}) {
      annulus_barrier(comm);
      if (rank == 0) {
        user->fake()->Fail(function, cuda::Result::kNotSupported, 0);
        EXPECT_NE(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << function;
      }
      annulus_barrier(comm);
      user->Fill(stream, memory, 1 + rank, kBytes);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes), ANNULUS_OK) << LastMessage();
      ASSERT_TRUE(user->Drain(stream));
      EXPECT_TRUE(user->Read(memory, kBytes) == std::vector<int>(kBytes, 3)) << function;
    }
    EXPECT_EQ(Verdict(comm).status, ANNULUS_OK);
  });
}

// Behind the first gate: the ranks know of the call by then. Rank 0 launches all kernels.
TEST_F(StreamFoldFaultsTest, ACallOfWhichTheDriverRefusesTheKernelEndsTheCommunicator) {
  for (const int launches : {0, 2}) {
    OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
      std::byte* const memory = user->Allocate(kBytes);
      annulus_barrier(comm);
      if (rank == 0) user->fake()->Fail("cuLaunchKernel", cuda::Result::kNotSupported, launches);
      // The communicator may have ended before a rank comes to it.
      InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kBytes);
      EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status != ANNULUS_OK; }));
      EXPECT_EQ(Verdict(comm).rank, 0);
      EXPECT_NE(std::string(Verdict(comm).message).find("could not be put into its stream"), std::string::npos)
          << Verdict(comm).message;
      EXPECT_TRUE(user->Drain(stream));
    });
  }
}

TEST_F(StreamFoldFaultsTest, NobodyCallsTheDriverWhileACallIsUnderWay) {
  fails_ = false;
  static Tally submitted;
  OnRanks(2, [](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
    if (rank == 0) user->Hold(stream);
    SubmitThree(comm, user, stream);
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(2));
    if (rank != 0) return;
    std::thread loads([&] { user->fake()->WaitLocked(); });
    EXPECT_TRUE(ComesTrue([&] { return user->fake()->IsLocked(); }));
    user->LetGo();
    loads.join();
  });
}

TEST_F(StreamFoldFaultsTest, ARankThatMakesACallOfAnotherKindWithoutAStreamEndsItToo) {
  for (const annulus_kind_t kind : {ANNULUS_CALL_BROADCAST, ANNULUS_CALL_REDUCE, ANNULUS_CALL_GATHER,
                                    ANNULUS_CALL_SCATTER, ANNULUS_CALL_ALLTOALL}) {
    for (const int differs : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "kind " << kind << ", without a stream: " << differs);
      OnRanks(2, [&](annulus_comm_t* comm, int rank, StreamUser* user, Stream stream) {
        if (rank == differs) {
          std::vector<std::byte> in(2 * kBytes), out(2 * kBytes);
          Calls calls;
          calls.Rooted(kind, in.data(), out.data(), kBytes, ANNULUS_UINT8, 0).op = ANNULUS_SUM;
          calls.Do(comm);  // A root may have sent all before it hears of the mismatch.
        } else {
          std::byte* const memory = user->Allocate(4 * kBytes);
          EXPECT_EQ(InStream(comm, stream, kind, memory, memory + 2 * kBytes, kBytes), ANNULUS_OK);
        }
        EXPECT_TRUE(user->Drain(stream));
        EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_MISMATCH; }));
        EXPECT_NE(std::string(Verdict(comm).message).find("without a stream"), std::string::npos)
            << Verdict(comm).message;
      });
    }
  }
}

}  // namespace
}  // namespace annulus
