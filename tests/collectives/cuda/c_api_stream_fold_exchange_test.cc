// gatherv, scatterv and alltoallv in streams, in memory of GPUs that the ranks share, where each rank knows only the
// sizes of its own parts: the bits of the same calls on host memory, what the GPUs do for them, counts that do not
// match, and failures. All on the stand-in for the driver.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/cuda/calls_in_stream.h"
#include "tests/collectives/cuda/folding_ranks.h"
#include "tests/collectives/cuda/mapped_fold.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::Stream;

constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_GATHERV, ANNULUS_CALL_SCATTERV, ANNULUS_CALL_ALLTOALLV};
constexpr Where kPlaces[] = {Where::kDevice,     Where::kInPlace, Where::kHostInput,
                             Where::kHostOutput, Where::kHost,    Where::kPinned};

// Tests make their ranks in processes of their own: some kill one, or have other GPUs than the rest.
class StreamFoldExchangeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

// Floats of a part that a piece has.
size_t PieceOf(int nranks) { return kPieceBytes / static_cast<size_t>(nranks) / 256 * 256 / sizeof(float); }

// Counts of each rank's part, or of what each sends each: small, with empty ones, in one piece, an even and an odd
// number of them; nothing at all.
std::vector<std::vector<size_t>> ShapesOf(annulus_kind_t kind, int nranks) {
  const auto n = static_cast<size_t>(nranks);
  const size_t parts = kind == ANNULUS_CALL_ALLTOALLV ? n * n : n;
  const size_t piece = PieceOf(nranks);
  std::vector<std::vector<size_t>> shapes(7, std::vector<size_t>(parts));
  for (size_t i = 0; i < parts; ++i) {
    shapes[0][i] = 1 + i;
    shapes[1][i] = i % 2 == 1 ? 0 : 1'025 + i;
    shapes[2][i] = i == parts - 1 ? 2 * piece : 0;      // Two pieces of one pair alone.
    shapes[3][i] = i == 1 ? 2 * piece + 1 : 7;          // Three, of which most have one.
    shapes[4][i] = piece;                               // Exactly one.
    shapes[5][i] = i % 3 == 0 ? 3 * piece + 11 : 1000;  // Four.
  }
  return shapes;
}

TEST_F(StreamFoldExchangeTest, EachHasTheBitsOfHostMemoryWhereverBuffersLie) {
  for (const int nranks : {2, 3, 4}) {
    if (kSanitized && nranks == 2) continue;
    OnFoldingThreads({nranks}, [](const FoldingRank& own) {
      size_t count = 0;
      for (const annulus_kind_t kind : kKinds) {
        for (const std::vector<size_t>& counts : ShapesOf(kind, own.nranks)) {
          for (const Where where : kPlaces) {
            if (kind == ANNULUS_CALL_ALLTOALLV && where == Where::kInPlace) continue;  // It has no such form.
            if (++count % 3 != 0 && kSanitized) continue;
            // Buffers of one rank in four lie elsewhere than those of the others.
            const bool has_gaps = (count + static_cast<size_t>(own.number)) % 2 == 1;
            const int root = static_cast<int>(count) % own.nranks;
            own.Compare(
                {kind, counts, ANNULUS_FLOAT32, ANNULUS_SUM, own.number == 3 ? Where::kDevice : where, root, has_gaps});
          }
        }
        for (const annulus_type_t type : {ANNULUS_INT8, ANNULUS_BFLOAT16, ANNULUS_FLOAT64, ANNULUS_COMPLEX128})
          own.Compare({kind, ShapesOf(kind, own.nranks)[3], type});
      }
    });
  }
}

// Of all ranks together: one into the shared memory and one from there for each piece of a part, one for what a rank
// has for itself, and no kernels.
TEST_F(StreamFoldExchangeTest, NothingGoesThroughHostMemory) {
  constexpr int kRanks = 4;
  for (const int gpus : {1, 2, 4}) {
    if (kSanitized && gpus == 4) continue;
    OnFoldingThreads({kRanks, gpus}, [](const FoldingRank& own) {
      for (const annulus_kind_t kind : kKinds) {
        for (const std::vector<size_t>& counts : ShapesOf(kind, kRanks)) {
          uint64_t copies = 0;
          for (size_t i = 0; i < counts.size(); ++i) {
            const bool is_own = kind == ANNULUS_CALL_ALLTOALLV ? i / kRanks == i % kRanks : i == 0;
            const size_t pieces = (counts[i] + PieceOf(kRanks) - 1) / PieceOf(kRanks);
            copies += is_own ? std::min<size_t>(pieces, 1) : 2 * pieces;
          }
          CallsInStream calls = own.NoCalls();
          calls.Add({kind, counts});
          annulus_barrier(own.comm);
          const cuda::FakeCounts before = own.user->fake()->Counts();
          annulus_barrier(own.comm);
          EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
          EXPECT_TRUE(own.user->Drain(own.stream));
          annulus_barrier(own.comm);
          const cuda::FakeCounts after = own.user->fake()->Counts();
          EXPECT_EQ(after.launches, before.launches);
          EXPECT_EQ(after.copies - before.copies, copies);
          EXPECT_EQ(after.crossings, before.crossings);
          annulus_barrier(own.comm);
        }
        own.Compare({kind, ShapesOf(kind, kRanks)[5]});
      }
    });
  }
}

// Pieces of one call do not overwrite what another still reads, in several streams, however many each has.
TEST_F(StreamFoldExchangeTest, CallsOfAllKindsFollowEachOther) {
  OnFoldingThreads({3}, [](const FoldingRank& own) {
    const Stream streams[] = {own.stream, own.user->NewStream(), own.user->NewStream()};
    for (int round = 0; round < (kSanitized ? 2 : 6); ++round) {
      std::vector<CallsInStream> calls;
      for (int i = 0; i < 14; ++i) {
        calls.push_back(own.NoCalls());
        const annulus_kind_t kind = kKinds[(i + round) % 3];
        if (i % 4 == 3) {
          calls.back().Add({i % 8 == 3 ? ANNULUS_CALL_ALLREDUCE : ANNULUS_CALL_ALLGATHERV, {30'000, 7, 20'000}});
        } else {
          const std::vector<std::vector<size_t>> shapes = ShapesOf(kind, 3);
          calls.back().Add({kind, shapes[static_cast<size_t>(5 * i + round) % shapes.size()]});
        }
        ASSERT_EQ(calls.back().Submit(streams[i % 3]), ANNULUS_OK) << LastMessage();
      }
      for (const Stream each : streams) ASSERT_TRUE(own.user->Drain(each));
      for (const CallsInStream& each : calls) each.Compare();
    }
  });
}

// The ranks do not agree in such calls, and do them the other way until then; in a group they always do.
TEST_F(StreamFoldExchangeTest, BeforeTheRanksHaveAgreedAndInGroupsTheyGoThroughHostMemory) {
  OnFoldingThreads({3, 1, false, false}, [](const FoldingRank& own) {
    const auto crossings = [&] { return own.user->fake()->Counts().crossings; };
    const std::vector<size_t> counts = {4'000, 0, 5'000};
    for (int i = 0; i < 20; ++i) own.Compare({ANNULUS_CALL_GATHERV, counts});
    EXPECT_GT(crossings(), 0);
    Agree(own.comm, own.user, own.stream);
    annulus_barrier(own.comm);
    const uint64_t before = crossings();
    annulus_barrier(own.comm);
    own.Compare({ANNULUS_CALL_GATHERV, counts});
    annulus_barrier(own.comm);
    EXPECT_EQ(crossings(), before);
    annulus_barrier(own.comm);
    CallsInStream calls = own.NoCalls();
    calls.Add({ANNULUS_CALL_ALLGATHER, {20'000}});
    calls.Add({ANNULUS_CALL_SCATTERV, counts});
    ASSERT_EQ(calls.Submit(own.stream), ANNULUS_OK) << LastMessage();
    ASSERT_TRUE(own.user->Drain(own.stream));
    calls.Compare();
    EXPECT_GT(crossings(), before);
    own.Compare({ANNULUS_CALL_ALLTOALLV, {1, 2, 3, 4, 5, 60'000, 7, 8, 9}});
  });
}

// Whoever takes a part names the rank that sends another number, in the words of calls on host memory.
TEST_F(StreamFoldExchangeTest, CountsThatDoNotMatchEndTheCall) {
  struct Case {
    annulus_kind_t kind;
    std::vector<size_t> rest;
    int odd;  // Rank that has other counts,
    std::vector<size_t> counts;
    int named;
    std::string words;
  };
  const std::vector<size_t> all = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const Case cases[] = {
      {ANNULUS_CALL_GATHERV, {40, 50, 60}, 1, {40, 51, 60}, 1, "rank 1 called gatherv #"},
      {ANNULUS_CALL_GATHERV, {40, 50, 60}, 0, {40, 50, 0}, 2, " with a part of 60 elements, for which rank 0 has 0"},
      {ANNULUS_CALL_SCATTERV, {40, 50, 60}, 2, {40, 50, 6'000'000}, 0, " of 60 elements, for which rank 2 has 6000000"},
      {ANNULUS_CALL_SCATTERV, {0, 0, 0}, 0, {0, 1, 0}, 0, " with a part of 1 elements, for which rank 1 has 0"},
      {ANNULUS_CALL_ALLTOALLV,
       all,
       2,
       {1, 2, 3, 4, 5, 6, 7, 80'000, 9},
       2,
       " of 80000 elements, for which rank 1 has 8"},
      {ANNULUS_CALL_ALLTOALLV, all, 0, {1, 2, 3, 0, 5, 6, 7, 8, 9}, 1, " of 4 elements, for which rank 0 has 0"},
  };
  for (const Case& each : cases) {
    OnFoldingThreads({3, 1, true}, [&](const FoldingRank& own) {
      CallsInStream calls = own.NoCalls();
      calls.Add({each.kind, own.number == each.odd ? each.counts : each.rest});
      EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
      const std::string message = Verdict(own.comm).message;
      EXPECT_NE(message.find(each.words), std::string::npos) << message;
      EXPECT_EQ(Verdict(own.comm).rank, each.named) << message;
      EXPECT_TRUE(own.user->Drain(own.stream));
    });
  }
}

TEST_F(StreamFoldExchangeTest, ARankThatMakesTheCallWithoutAStreamEndsIt) {
  for (const int differs : {0, 1}) {
    OnFoldingThreads({2, 1, true}, [&](const FoldingRank& own) {
      const size_t counts[] = {5'000, 3'000};
      std::vector<float> in(8'000), out(8'000);
      if (own.number == differs) {
        EXPECT_EQ(annulus_alltoallv(own.comm, in.data(), counts, nullptr, out.data(), counts, nullptr, ANNULUS_FLOAT32),
                  ANNULUS_MISMATCH);
      } else {
        CallsInStream calls = own.NoCalls();
        calls.Add({ANNULUS_CALL_ALLTOALLV, {5'000, 3'000, 5'000, 3'000}});
        EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
      }
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
      const std::string message = Verdict(own.comm).message;
      EXPECT_NE(message.find("without a stream"), std::string::npos) << message;
    });
  }
}

// An open gate lets a GPU read what the host still writes, which nobody looks at then. The thread sanitizer sees a
// race.
TEST_F(StreamFoldExchangeTest, AnAbortOpensTheGatesOfAllRanks) {
  for (const int held : {0, 2}) {
    static Tally submitted;
    OnFoldingThreads({3, 1, true}, [&](const FoldingRank& own) {
      if (own.number == held) own.user->Hold(own.stream);
      for (const annulus_kind_t kind : kKinds) {
        CallsInStream calls = own.NoCalls();
        calls.Add({kind, ShapesOf(kind, 3)[5], ANNULUS_FLOAT32, ANNULUS_SUM,
                   own.number == 0 && !kThreadSanitized ? Where::kPinned : Where::kDevice});
        if (own.number == 1) continue;
        EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
      }
      submitted.Add();
      ASSERT_TRUE(submitted.WaitFor(3));
      EXPECT_TRUE(own.number != 1 || annulus_comm_abort(own.comm, "enough") == ANNULUS_OK);
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_ABORTED; }));
      own.user->LetGo();
      EXPECT_TRUE(own.user->Drain(own.stream));
    });
  }
}

// Ranks that are processes, of which one dies while the streams of all wait at gates of its call.
TEST_F(StreamFoldExchangeTest, ARankThatIsKilledBlocksNoStream) {
  constexpr int kDies = 1;
  for (const annulus_kind_t kind : kKinds) {
    const Cluster cluster(FoldingConfig(3));
    int submitted[2];
    ASSERT_EQ(pipe(submitted), 0);
    InProcesses(
        3,
        [&](int number) {
          LoadDriver({.devices = 1});
          const UserConfig config = cluster.Config(number);
          annulus_comm_t* comm = nullptr;
          ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
          {
            StreamUser user;
            const Stream stream = user.NewStream();
            Agree(comm, &user, stream);
            const FoldingRank own{comm, number, 3, &user, stream};
            for (const std::vector<size_t>& counts : ShapesOf(kind, 3)) own.Compare({kind, counts});
            own.Compare({kind, ShapesOf(kind, 3)[5], ANNULUS_FLOAT32, ANNULUS_SUM, Where::kHost});
            CallsInStream calls(comm, number, 3, &user);
            calls.Add({kind, ShapesOf(kind, 3)[5]});
            if (number == kDies) user.Hold(stream);  // So the others wait at the first gate.
            EXPECT_EQ(calls.SubmitOnly(stream), ANNULUS_OK) << LastMessage();
            if (number == kDies) {
              char others[2];
              for (char& each : others) ASSERT_EQ(read(submitted[0], &each, 1), 1);
              kill(getpid(), SIGKILL);
            }
            ASSERT_EQ(write(submitted[1], "x", 1), 1);
            EXPECT_TRUE(user.Drain(stream));
            EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_PEER_LOST; }));
            EXPECT_EQ(Verdict(comm).rank, kDies);
          }
          EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
        },
        kDies);
    close(submitted[0]);
    close(submitted[1]);
  }
}

}  // namespace
}  // namespace annulus
