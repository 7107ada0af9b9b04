// Groups of large calls in streams, done in memory of GPUs that the ranks share: the bits of the same groups on host
// memory, what the GPUs do for them, which groups go the other way, ranks whose groups differ, and failures. All on the
// stand-in for the driver.
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

constexpr Where kPlaces[] = {Where::kDevice,     Where::kInPlace, Where::kDevice, Where::kHostInput,
                             Where::kHostOutput, Where::kHost,    Where::kPinned};

class StreamFoldGroupsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

// Tensors of a model, as one bucket of gradients has them.
CallsInStream Gradients(const FoldingRank& own, annulus_type_t type, annulus_op_t op, bool spread) {
  CallsInStream calls = own.NoCalls();
  size_t number = 0;
  for (const size_t count : {3'000, 1, 0, 64, 17'000, 2, 5'001, 40'000, 3, 16'384, 129}) {
    const Where where =
        spread ? kPlaces[(number++ + static_cast<size_t>(own.number)) % std::size(kPlaces)] : kPlaces[0];
    calls.Add({ANNULUS_CALL_ALLREDUCE, {count}, type, op, where});
  }
  return calls;
}

// Parameters of several layers, which a step of sharded training gathers, and gradients that it scatters.
CallsInStream Shards(const FoldingRank& own, bool spread, size_t unit = 2'000) {
  CallsInStream calls = own.NoCalls();
  std::vector<size_t> parts;
  for (int i = 0; i < own.nranks; ++i) parts.push_back(unit + 700 * static_cast<size_t>(i));
  const CallInStream forms[] = {{ANNULUS_CALL_ALLGATHER, {2 * unit}},
                                {ANNULUS_CALL_REDUCE_SCATTER, {unit + 1}},
                                {ANNULUS_CALL_ALLGATHERV, parts},
                                {ANNULUS_CALL_REDUCE_SCATTERV, parts},
                                {ANNULUS_CALL_BROADCAST, {3 * unit}},
                                {ANNULUS_CALL_ALLTOALL, {unit}},
                                {ANNULUS_CALL_ALLGATHER, {0}},
                                {ANNULUS_CALL_REDUCE, {unit}, ANNULUS_INT32},
                                {ANNULUS_CALL_ALLREDUCE, {4 * unit}, ANNULUS_BFLOAT16},
                                {ANNULUS_CALL_ALLREDUCE, {unit}},
                                {ANNULUS_CALL_ALLREDUCE, {unit + 5}, ANNULUS_BFLOAT16}};
  size_t number = 0;
  for (CallInStream form : forms) {
    if (spread) form.where = kPlaces[(number++ + static_cast<size_t>(own.number)) % std::size(kPlaces)];
    const bool may_be_in_place = form.kind != ANNULUS_CALL_ALLTOALL && form.kind != ANNULUS_CALL_REDUCE;
    if (form.where == Where::kInPlace && !may_be_in_place) form.where = Where::kDevice;
    calls.Add(form);
  }
  return calls;
}

void SubmitAndCompare(const FoldingRank& own, CallsInStream calls) {
  ASSERT_EQ(calls.Submit(own.stream), ANNULUS_OK) << LastMessage();
  ASSERT_TRUE(own.user->Drain(own.stream));
  calls.Compare();
}

TEST_F(StreamFoldGroupsTest, EachHasTheBitsOfHostMemoryWhereverBuffersLie) {
  for (const int nranks : {2, 3, 4}) {
    for (const int gpus : {1, 2}) {
      if (kSanitized && nranks != 2 + gpus) continue;
      OnFoldingThreads({nranks, gpus}, [](const FoldingRank& own) {
        for (const bool spread : {false, true}) {
          SubmitAndCompare(own, Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, spread));
          SubmitAndCompare(own, Gradients(own, ANNULUS_BFLOAT16, ANNULUS_AVG, spread));
          SubmitAndCompare(own, Gradients(own, ANNULUS_COMPLEX128, ANNULUS_PROD, spread));
          SubmitAndCompare(own, Shards(own, spread));
          SubmitAndCompare(own, Shards(own, spread, 9'000));
        }
      });
    }
  }
}

struct Work {
  int64_t launches;
  int64_t copies;
  int64_t crossings;
};

// What the group adds to the work of all ranks, which are threads.
Work WorkOf(const FoldingRank& own, const CallsInStream& calls) {
  annulus_barrier(own.comm);
  const cuda::FakeCounts before = own.user->fake()->Counts();
  annulus_barrier(own.comm);
  EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
  EXPECT_TRUE(own.user->Drain(own.stream));
  annulus_barrier(own.comm);
  const cuda::FakeCounts after = own.user->fake()->Counts();
  annulus_barrier(own.comm);
  return {after.launches - before.launches, after.copies - before.copies, after.crossings - before.crossings};
}

CallsInStream Alike(const FoldingRank& own, const CallInStream& call, int times) {
  CallsInStream calls = own.NoCalls();
  for (int i = 0; i < times; ++i) calls.Add(call);
  return calls;
}

// A tensor takes a copy each way on each rank, and sixteen folds of chunks take one launch.
TEST_F(StreamFoldGroupsTest, NothingGoesThroughHostMemory) {
  OnFoldingThreads({2}, [](const FoldingRank& own) {
    const Work tensors = WorkOf(own, Alike(own, {ANNULUS_CALL_ALLREDUCE, {200}}, 50));
    EXPECT_EQ(tensors.launches, (50 * 2 + 15) / 16);
    EXPECT_EQ(tensors.copies, 2 * 50 * 2);
    EXPECT_EQ(tensors.crossings, 0);
    const Work gathers = WorkOf(own, Alike(own, {ANNULUS_CALL_ALLGATHER, {1'000}}, 5));
    EXPECT_EQ(gathers.launches, 0);
    EXPECT_EQ(gathers.copies, 5 * (2 + 2 * 2));
    EXPECT_EQ(gathers.crossings, 0);
    const Work scatters = WorkOf(own, Alike(own, {ANNULUS_CALL_REDUCE_SCATTERV, {1'000, 400}}, 3));
    EXPECT_EQ(scatters.launches, 3);
    EXPECT_EQ(scatters.crossings, 0);
  });
}

// Each GPU folds the chunks of its ranks.
TEST_F(StreamFoldGroupsTest, AllGpusFold) {
  OnFoldingThreads({4, 4}, [](const FoldingRank& own) {
    const Work work = WorkOf(own, Alike(own, {ANNULUS_CALL_ALLREDUCE, {2'000}}, 4));
    EXPECT_EQ(work.launches, 4);
    EXPECT_EQ(work.copies, 4 * 4 + 4 * 4 * 4);
    EXPECT_EQ(work.crossings, 0);
  });
}

// Calls that are too small for folds, or are none, take the whole group along.
TEST_F(StreamFoldGroupsTest, OtherGroupsGoThroughHostMemoryAsAWhole) {
  OnFoldingThreads({2}, [](const FoldingRank& own) {
    const auto goes_other_way = [&](const CallsInStream& calls) {
      const Work work = WorkOf(own, calls);
      EXPECT_EQ(work.launches, 0);
      EXPECT_GT(work.crossings, 0);
    };
    CallsInStream with_barrier = Alike(own, {ANNULUS_CALL_ALLREDUCE, {5'000}}, 2);
    with_barrier.Add({ANNULUS_CALL_BARRIER, {0}});
    goes_other_way(with_barrier);
    goes_other_way(Alike(own, {ANNULUS_CALL_REDUCE_SCATTER, {50}}, 40));  // 16 KB together.
    goes_other_way(Alike(own, {ANNULUS_CALL_ALLREDUCE, {50}}, 3));
    SubmitAndCompare(own, Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, false));
  });
}

// The first allgather or reduce-scatter of each group asks whether such calls may be folds.
TEST_F(StreamFoldGroupsTest, RanksAgreeInGroupsToo) {
  OnFoldingThreads({.nranks = 3, .agrees = false}, [](const FoldingRank& own) {
    EXPECT_EQ(WorkOf(own, Alike(own, {ANNULUS_CALL_REDUCE_SCATTER, {1'000}}, 3)).launches, 0);
    for (int i = 0; i < kCallsToAgree; ++i) SubmitAndCompare(own, Shards(own, i % 2 == 0, 1'000));
    EXPECT_EQ(WorkOf(own, Alike(own, {ANNULUS_CALL_REDUCE_SCATTER, {1'000}}, 3)).launches, 3);
    SubmitAndCompare(own, Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, true));
  });
}

TEST_F(StreamFoldGroupsTest, GroupsAndCallsFollowEachOtherInSeveralStreams) {
  OnFoldingThreads({3}, [](const FoldingRank& own) {
    const Stream streams[] = {own.stream, own.user->NewStream(), own.user->NewStream()};
    std::vector<CallsInStream> calls;
    std::vector<annulus_request_t*> requests;
    for (int i = 0; i < (kSanitized ? 8 : 14); ++i) {
      calls.push_back(i % 4 == 3   ? Alike(own, {ANNULUS_CALL_ALLREDUCE, {9'000}}, 1)
                      : i % 2 == 0 ? Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, i % 3 == 0)
                                   : Shards(own, i % 3 == 0, 1'500 + 500 * static_cast<size_t>(i)));
      ASSERT_EQ(calls.back().Submit(streams[i % 3], &requests.emplace_back()), ANNULUS_OK) << LastMessage();
    }
    for (annulus_request_t* const each : requests) {
      EXPECT_EQ(annulus_request_wait(each, -1), ANNULUS_OK) << LastMessage(own.comm);
      annulus_request_free(each);
    }
    for (const Stream each : streams) ASSERT_TRUE(own.user->Drain(each));
    for (const CallsInStream& each : calls) each.Compare();
  });
}

TEST_F(StreamFoldGroupsTest, RanksWhoseGroupsDifferHearHow) {
  struct Case {
    std::vector<CallInStream> rest, odd;
    std::string named;
  };
  const CallInStream sum{ANNULUS_CALL_ALLREDUCE, {3'000}}, longer{ANNULUS_CALL_ALLREDUCE, {3'001}};
  const CallInStream gather{ANNULUS_CALL_ALLGATHER, {2'000}}, scatter{ANNULUS_CALL_REDUCE_SCATTER, {2'000}};
  const CallInStream parts{ANNULUS_CALL_ALLGATHERV, {2'000, 3'000}}, others{ANNULUS_CALL_ALLGATHERV, {3'000, 2'000}};
  const Case cases[] = {
      {{sum, sum}, {sum, longer}, "count 600"},
      {{gather, scatter}, {scatter, gather}, "reduce_scatter"},
      {{gather, scatter, sum}, {gather, scatter}, "allreduce"},
      {{sum, parts}, {sum, others}, "rank 1 called allgatherv"},
  };
  for (const Case& each : cases) {
    OnFoldingThreads({2, 1, true}, [&](const FoldingRank& own) {
      CallsInStream calls = own.NoCalls();
      for (const CallInStream& call : own.number == 1 ? each.odd : each.rest) calls.Add(call);
      EXPECT_EQ(calls.SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
      if (each.odd.size() != each.rest.size()) {  // The longer group waits for more.
        CallsInStream last = own.NoCalls();
        last.Add(gather);
        last.SubmitOnly(own.stream);
      }
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
      const std::string message = Verdict(own.comm).message;
      EXPECT_NE(message.find(each.named), std::string::npos) << message;
    });
  }
}

TEST_F(StreamFoldGroupsTest, ARankThatSubmitsTheGroupWithoutAStreamEndsIt) {
  for (const int differs : {0, 1}) {
    // Nobody waits for the calls, so they may go on until the communicators are destroyed.
    std::vector<float> ins[2], outs[2];
    OnFoldingThreads({2, 1, true}, [&](const FoldingRank& own) {
      Calls calls;
      std::vector<float>& in = ins[own.number];
      std::vector<float>& out = outs[own.number];
      in.resize(20'000);
      out.resize(20'000);
      for (int i = 0; i < 2; ++i) {
        annulus_call_t& call =
            calls.Allreduce(in.data() + 10'000 * i, out.data() + 10'000 * i, 10'000, ANNULUS_FLOAT32, ANNULUS_SUM);
        call.stream = own.number == differs ? nullptr : own.stream;
        call.stream_kind = own.number == differs ? 0 : ANNULUS_STREAM_CUDA;
      }
      EXPECT_EQ(calls.Submit(own.comm, nullptr), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(own.user->Drain(own.stream));
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_MISMATCH; }));
      const std::string message = Verdict(own.comm).message;
      EXPECT_NE(message.find("without a stream"), std::string::npos) << message;
    });
  }
}

// Wherever it is refused, both ranks refuse the group alike; later ones are right.
TEST_F(StreamFoldGroupsTest, AGroupThatTheDriverRefusesHarmsNoLaterOne) {
  OnFoldingThreads({2}, [](const FoldingRank& own) {
    for (const char* function : {"cuStreamWriteValue32", "cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent"}) {
      annulus_barrier(own.comm);
      if (own.number == 0) {
        own.user->fake()->Fail(function, cuda::Result::kNotSupported, 0);
        EXPECT_NE(Shards(own, false).SubmitOnly(own.stream), ANNULUS_OK) << function;
      }
      annulus_barrier(own.comm);
      SubmitAndCompare(own, Shards(own, false));
    }
    EXPECT_EQ(Verdict(own.comm).status, ANNULUS_OK);
  });
}

TEST_F(StreamFoldGroupsTest, AnAbortOpensTheGatesOfAllRanks) {
  for (const int held : {0, 2}) {
    Tally submitted;  // The process of the ranks has its own.
    OnFoldingThreads({3, 1, true}, [&](const FoldingRank& own) {
      if (own.number == held) own.user->Hold(own.stream);
      if (own.number != 1) {
        EXPECT_EQ(Shards(own, false).SubmitOnly(own.stream), ANNULUS_OK) << LastMessage();
        EXPECT_EQ(Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, false).SubmitOnly(own.stream), ANNULUS_OK);
      }
      submitted.Add();
      ASSERT_TRUE(submitted.WaitFor(3));
      EXPECT_TRUE(own.number != 1 || annulus_comm_abort(own.comm, "enough") == ANNULUS_OK);
      EXPECT_TRUE(ComesTrue([&] { return Verdict(own.comm).status == ANNULUS_ABORTED; }));
      own.user->LetGo();
      EXPECT_TRUE(own.user->Drain(own.stream));
      EXPECT_EQ(Shards(own, false).SubmitOnly(own.stream), ANNULUS_ABORTED);
    });
  }
}

// Ranks that are processes, of which one dies while the streams of the others wait at gates of their groups.
TEST_F(StreamFoldGroupsTest, ARankThatIsKilledBlocksNoStream) {
  constexpr int kDies = 1;
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
          SubmitAndCompare(own, Shards(own, true));
          SubmitAndCompare(own, Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, true));
          const CallsInStream shards = Shards(own, false);
          const CallsInStream gradients = Gradients(own, ANNULUS_FLOAT32, ANNULUS_SUM, false);
          if (number == kDies) user.Hold(stream);  // So the others wait at the first gate.
          EXPECT_EQ(shards.SubmitOnly(stream), ANNULUS_OK) << LastMessage();
          EXPECT_EQ(gradients.SubmitOnly(stream), ANNULUS_OK) << LastMessage();
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

}  // namespace
}  // namespace annulus
