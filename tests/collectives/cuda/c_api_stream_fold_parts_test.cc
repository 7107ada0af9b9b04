// Large allgatherv and reduce_scatterv in streams, in memory of GPUs that the ranks share: the bits of the same calls
// on host memory, what the GPUs do for them, ranks whose sizes differ, and failures. All on the stand-in for the
// driver.
#include <unistd.h>

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

constexpr annulus_kind_t kKinds[] = {ANNULUS_CALL_ALLGATHERV, ANNULUS_CALL_REDUCE_SCATTERV};
constexpr Where kPlaces[] = {Where::kDevice,     Where::kInPlace, Where::kHostInput,
                             Where::kHostOutput, Where::kHost,    Where::kPinned};

// Tests make their ranks in processes of their own: some kill one, or have other GPUs than the rest.
class StreamFoldPartsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

// Parts of very different sizes, some of them empty; of one piece and of several.
std::vector<std::vector<size_t>> ShapesOf(int nranks) {
  const auto n = static_cast<size_t>(nranks);
  std::vector<std::vector<size_t>> shapes(5, std::vector<size_t>(n));
  for (size_t i = 0; i < n; ++i) {
    shapes[0][i] = 3'000 + 1'111 * i;
    shapes[1][i] = i == 1 ? 0 : 1'025 + i;
    shapes[2][i] = i == n - 1 ? 50'003 : 0;
    shapes[3][i] = i == 0 ? 31'999 : 1;
    shapes[4][i] = 16'384;  // Cut at the ends of the halves.
  }
  return shapes;
}

TEST_F(StreamFoldPartsTest, EachHasTheBitsOfHostMemoryWhereverBuffersLie) {
  for (const int nranks : {2, 3, 4}) {
    if (kSanitized && nranks == 2) continue;
    OnFoldingThreads({nranks}, [](const FoldingRank& own) {
      size_t count = 0;
      for (const annulus_kind_t kind : kKinds) {
        for (const std::vector<size_t>& counts : ShapesOf(own.nranks)) {
          for (const Where where : kPlaces) {
            if (kSanitized && ++count % 3 != 0) continue;
            // Buffers of one rank in four lie elsewhere than those of the others.
            const bool has_gaps = (count + static_cast<size_t>(own.number)) % 2 == 1;
            own.Compare(
                {kind, counts, ANNULUS_FLOAT32, ANNULUS_SUM, own.number == 3 ? Where::kDevice : where, 0, has_gaps});
          }
        }
        for (const annulus_type_t type : {ANNULUS_INT8, ANNULUS_BFLOAT16, ANNULUS_FLOAT64, ANNULUS_COMPLEX128}) {
          for (const annulus_op_t op : {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_AVG})
            own.Compare({kind, ShapesOf(own.nranks)[3], type, op});
        }
      }
    });
  }
}

// Of all ranks together. Each piece has a share of each part, so that each GPU has something to fold.
TEST_F(StreamFoldPartsTest, EachTakesTheCopiesThatItNeedsAndReductionsOneKernelOnEachGpu) {
  constexpr int kRanks = 4;
  for (const int gpus : {1, 2, 4}) {
    if (kSanitized && gpus == 4) continue;
    OnFoldingThreads({kRanks, gpus}, [=](const FoldingRank& own) {
      for (const int pieces : {1, 3}) {
        for (const annulus_kind_t kind : kKinds) {
          std::vector<size_t> counts;
          const size_t bytes = static_cast<size_t>(pieces) * (kPieceBytes - 2'000);
          for (const size_t eighths : {1, 1, 4, 2}) counts.push_back(bytes * eighths / 8 / sizeof(float));
          CallsInStream calls = own.NoCalls();
          calls.Add({kind, counts});
          annulus_barrier(own.comm);
          const cuda::FakeCounts before = own.user->fake()->Counts();
          annulus_barrier(own.comm);
          EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
          EXPECT_TRUE(own.user->Drain(own.stream));
          annulus_barrier(own.comm);
          const cuda::FakeCounts after = own.user->fake()->Counts();
          EXPECT_EQ(after.launches - before.launches, kind == ANNULUS_CALL_ALLGATHERV ? 0 : gpus * pieces);
          EXPECT_EQ(after.copies - before.copies, pieces * (kRanks + kRanks * kRanks));
          EXPECT_EQ(after.crossings, before.crossings) << "nothing goes through host memory";
          annulus_barrier(own.comm);
        }
      }
      own.Compare({ANNULUS_CALL_REDUCE_SCATTERV, ShapesOf(kRanks)[0]});
      own.Compare({ANNULUS_CALL_ALLGATHERV, ShapesOf(kRanks)[2]});
    });
  }
}

// Pieces of one call do not overwrite what another still reads, in several streams.
TEST_F(StreamFoldPartsTest, CallsOfAllKindsFollowEachOther) {
  OnFoldingThreads({3}, [](const FoldingRank& own) {
    const Stream streams[] = {own.stream, own.user->NewStream(), own.user->NewStream()};
    std::vector<CallsInStream> calls;
    for (int i = 0; i < (kSanitized ? 8 : 14); ++i) {
      calls.push_back(own.NoCalls());
      calls.back().Add({i % 3 == 2 ? ANNULUS_CALL_ALLGATHER : kKinds[i % 2], ShapesOf(3)[static_cast<size_t>(i) % 5]});
      ASSERT_EQ(calls.back().Submit(streams[i % 3]), ANNULUS_OK) << LastMessage();
    }
    for (const Stream each : streams) ASSERT_TRUE(own.user->Drain(each));
    for (const CallsInStream& each : calls) each.Compare();
  });
}

// As on host memory, with the same words; the sum of the sizes may be the same.
TEST_F(StreamFoldPartsTest, RanksThatTakeAPartForAnotherSizeAreNamed) {
  constexpr int kOdd = 1;
  const std::vector<size_t> rest = {4'000, 5'000, 6'000};
  struct Case {
    std::vector<size_t> odd;
    std::string named;
  };
  const Case cases[] = {
      {{4'000, 5'000, 7'000}, " with counts for 16000 elements, the others with counts for 15000 elements"},
      {{4'000, 5'000, 6'000'000}, " with counts for 6009000 elements, the others with counts for 15000 elements"},
      {{3'000, 5'000, 7'000}, " with other counts than the others, though of the same sum"},
  };
  for (const annulus_kind_t kind : kKinds) {
    for (const Case& each : cases) {
      OnFoldingThreads({3, 1, true}, [&](const FoldingRank& own) {
        CallsInStream calls = own.NoCalls();
        calls.Add({kind, own.number == kOdd ? each.odd : rest});
        EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
        EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
        const std::string message = Verdict(own.comm).message;
        EXPECT_NE(message.find(each.named), std::string::npos) << message;
        EXPECT_EQ(Verdict(own.comm).rank, kOdd) << message;
      });
    }
  }
}

TEST_F(StreamFoldPartsTest, ARankThatMakesTheCallWithoutAStreamEndsIt) {
  for (const annulus_kind_t kind : kKinds) {
    for (const int differs : {0, 1}) {
      OnFoldingThreads({2, 1, true}, [&](const FoldingRank& own) {
        const size_t counts[] = {5'000, 3'000};
        std::vector<float> in(8'000), out(8'000);
        if (own.number == differs && kind == ANNULUS_CALL_ALLGATHERV) {
          EXPECT_EQ(
              annulus_allgatherv(own.comm, in.data(), counts[own.number], out.data(), counts, nullptr, ANNULUS_FLOAT32),
              ANNULUS_MISMATCH);
        } else if (own.number == differs) {
          EXPECT_EQ(annulus_reduce_scatterv(own.comm, in.data(), counts, nullptr, out.data(), counts[own.number],
                                            ANNULUS_FLOAT32, ANNULUS_SUM),
                    ANNULUS_MISMATCH);
        } else {
          CallsInStream calls = own.NoCalls();
          calls.Add({kind, {counts[0], counts[1]}});
          EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
        }
        EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
        const std::string message = Verdict(own.comm).message;
        EXPECT_NE(message.find("without a stream"), std::string::npos) << message;
      });
    }
  }
}

// An open gate lets a GPU read what the host still writes, which nobody looks at then. The thread sanitizer sees a
// race.
TEST_F(StreamFoldPartsTest, AnAbortOpensTheGatesOfAllRanks) {
  for (const int held : {0, 2}) {
    static Tally submitted;
    OnFoldingThreads({3, 1, true}, [&](const FoldingRank& own) {
      if (own.number == held) own.user->Hold(own.stream);
      for (const annulus_kind_t kind : kKinds) {
        CallsInStream calls = own.NoCalls();
        calls.Add({kind, ShapesOf(3)[2], ANNULUS_FLOAT32, ANNULUS_SUM,
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
TEST_F(StreamFoldPartsTest, ARankThatIsKilledBlocksNoStream) {
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
            own.Compare({kind, ShapesOf(3)[0]});
            own.Compare({kind, ShapesOf(3)[2], ANNULUS_FLOAT32, ANNULUS_SUM, Where::kHost});
            CallsInStream calls(comm, number, 3, &user);
            calls.Add({kind, {300'000, 900'000, 100'000}});
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
