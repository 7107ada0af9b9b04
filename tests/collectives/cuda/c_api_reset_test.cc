// Programs that reset a GPU (cudaDeviceReset) which communicators have used: each rank is told what happened and what
// to do, streams and requests end, nothing of what was there is touched, and new communicators work. On the stand-in
// for CUDA's driver, each test in processes of its own, since a process looks for the driver once.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_folds.h"
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/cuda/mapped_fold.h"
#include "tests/collectives/graphs/user_graph.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/stream_ranks.h"

namespace annulus {
namespace {

constexpr size_t kFew = 100;      // Staged as a whole.
constexpr size_t kMany = 40'000;  // One fold, or slice by slice.

annulus_status_t Sum(annulus_comm_t* comm, const void* in, void* out, size_t count) {
  return annulus_allreduce(comm, in, out, count, ANNULUS_INT64, ANNULUS_SUM);
}

// The sum of ones, in the memory of GPU 0.
void ExpectWorks(annulus_comm_t* comm, cuda::FakeControl* fake, int64_t nranks) {
  for (const size_t count : {kFew, kMany}) {
    std::vector<int64_t> values(count, 1);
    const size_t bytes = count * sizeof(int64_t);
    std::byte* const memory = fake->Allocate(0, bytes);
    fake->Write(memory, values.data(), bytes);
    ASSERT_EQ(Sum(comm, memory, memory, count), ANNULUS_OK) << LastMessage(comm);
    fake->Read(values.data(), memory, bytes);
    EXPECT_EQ(values, std::vector<int64_t>(count, nranks));
    fake->Free(memory);
  }
}

// A rank that sees it refuses the call, unless it hears the verdict first, which its own refusal brings about too.
void ExpectResetTold(const annulus_comm_t* comm, annulus_status_t status) {
  EXPECT_TRUE(status == ANNULUS_SYSTEM_ERROR || status == ANNULUS_ABORTED) << status;
  EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_ABORTED; }));
  const std::string verdict = Verdict(comm).message;
  for (const std::string& text : {LastMessage(comm), verdict}) {
    for (const char* const words : {"GPU 0, ", "was reset (cudaDeviceReset)", "make a new one"})
      EXPECT_NE(text.find(words), std::string::npos) << text;
  }
}

// All ranks come here; then the GPU has been reset.
void ResetOnce(Tally* came, Tally* reset, int rank, int nranks) {
  came->Add();
  ASSERT_TRUE(came->WaitFor(nranks));
  if (rank == 0) {
    LoadDriver()->ResetDevice(0);
    reset->Add();
  }
  ASSERT_TRUE(reset->WaitFor(1));
}

// A test in a process of its own, with ranks that are threads. A communicator that is made after it works.
void OnThreads(const ClusterConfig& config, const std::function<void(annulus_comm_t* comm, int rank)>& body) {
  InProcesses(1, [&](int) {
    LoadDriver();
    Cluster(config).Run(body);
    ClusterConfig next = config;
    next.stream_fold_bytes = -1;
    Cluster(next).Run([&](annulus_comm_t* comm, int) {
      ExpectWorks(comm, LoadDriver(), config.nranks);
      StreamUser user;
      const cuda::Stream stream = user.NewStream();
      std::byte* const memory = user.Allocate(kFew);
      user.Fill(stream, memory, 1, kFew);
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kFew), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(user.Drain(stream));
      EXPECT_EQ(user.Read(memory, kFew), std::vector<int>(kFew, config.nranks));
    });
    ExpectNothingWrong();
    EXPECT_EQ(LoadDriver()->Counts().streams, 0);
    EXPECT_EQ(LoadDriver()->Counts().events, 0);
    EXPECT_EQ(LoadDriver()->Counts().allocations, 0);
  });
}

ClusterConfig Ranks(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = "shm";
  return config;
}

TEST(ResetTest, BetweenCallsEachRankIsTold) {
  for (const bool has_new_memory : {true, false}) {
    for (const size_t count : {kFew, kMany}) {
      Tally came;
      Tally reset;
      OnThreads(Ranks(2), [&](annulus_comm_t* comm, int rank) {
        std::byte* memory = LoadDriver()->Allocate(0, count * sizeof(int64_t));
        ASSERT_EQ(Sum(comm, memory, memory, count), ANNULUS_OK) << LastMessage(comm);
        ResetOnce(&came, &reset, rank, 2);
        if (has_new_memory) memory = LoadDriver()->Allocate(0, count * sizeof(int64_t));
        for (int i = 0; i < 2; ++i) ExpectResetTold(comm, Sum(comm, memory, memory, count));
        if (has_new_memory) LoadDriver()->Free(memory);
      });
    }
  }
}

TEST(ResetTest, ACommunicatorThatIsOnlyDestroyedTouchesNothing) {
  Tally came;
  Tally reset;
  OnThreads(Ranks(2), [&](annulus_comm_t* comm, int rank) {
    ExpectWorks(comm, LoadDriver(), 2);
    {
      StreamUser user;
      const cuda::Stream stream = user.NewStream();
      std::byte* const memory = user.Allocate(kFew);
      ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kFew), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(user.Drain(stream));
    }
    ResetOnce(&came, &reset, rank, 2);
    EXPECT_EQ(Verdict(comm).status, ANNULUS_OK) << "host memory may be used on";
    int64_t one = 1;
    EXPECT_EQ(Sum(comm, &one, &one, 1), ANNULUS_OK) << LastMessage(comm);
  });
}

// Neither the streams that are gone nor those of the new context are used.
TEST(ResetTest, BetweenCallsInStreams) {
  for (const bool has_new_stream : {true, false}) {
    Tally came;
    Tally reset;
    OnThreads(Ranks(2), [&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      const cuda::Stream before = user.NewStream();
      std::byte* const memory = user.Allocate(kFew);
      ASSERT_EQ(InStream(comm, before, ANNULUS_CALL_ALLREDUCE, memory, memory, kFew), ANNULUS_OK) << LastMessage();
      EXPECT_TRUE(user.Drain(before));
      ResetOnce(&came, &reset, rank, 2);
      user.Forget();
      StreamUser next;
      const cuda::Stream stream = has_new_stream ? next.NewStream() : before;
      std::byte* const again = next.Allocate(kFew);
      ExpectResetTold(comm, InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, again, again, kFew));
    });
  }
}

// Some streams have not come to the call, or only one rank's has.
TEST(ResetTest, CallsInStreamsThatAreUnderWayEnd) {
  for (const bool is_held : {true, false}) {
    Tally came;
    Tally reset;
    OnThreads(Ranks(2), [&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      const cuda::Stream stream = user.NewStream();
      if (is_held) user.Hold(stream);
      std::byte* const memory = user.Allocate(kFew);
      annulus_request_t* request = nullptr;
      if (is_held || rank == 1) {
        for (int i = 0; i < 3; ++i) {
          annulus_request_free(request);
          request = nullptr;
          ASSERT_EQ(
              InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kFew, 0, i == 2 ? &request : nullptr),
              ANNULUS_OK)
              << LastMessage();
        }
      }
      ResetOnce(&came, &reset, rank, 2);
      user.Forget();
      if (request != nullptr) {
        ExpectResetTold(comm, annulus_request_wait(request, -1));
        annulus_request_free(request);
      } else {
        EXPECT_TRUE(ComesTrue([&] { return Verdict(comm).status == ANNULUS_ABORTED; }));
      }
    });
  }
}

TEST(ResetTest, FoldsInStreams) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  for (const bool is_under_way : {false, true}) {
    Tally came;
    Tally reset;
    OnThreads(FoldingConfig(2), [&](annulus_comm_t* comm, int rank) {
      StreamUser user;
      const cuda::Stream stream = user.NewStream();
      Agree(comm, &user, stream);
      std::byte* const memory = user.Allocate(2 * kPieceBytes);
      annulus_request_t* request = nullptr;
      if (is_under_way) {
        user.Hold(stream);
        ASSERT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, 2 * kPieceBytes, 0, &request),
                  ANNULUS_OK);
      }
      ResetOnce(&came, &reset, rank, 2);
      user.Forget();
      if (is_under_way) ExpectResetTold(comm, annulus_request_wait(request, -1));
      annulus_request_free(request);
      StreamUser next;
      std::byte* const again = next.Allocate(kPieceBytes);
      ExpectResetTold(comm, InStream(comm, next.NewStream(), ANNULUS_CALL_ALLREDUCE, again, again, kPieceBytes));
    });
  }
}

TEST(ResetTest, ACapturedCallOutlivesIt) {
  Tally came;
  Tally reset;
  OnThreads(Ranks(2), [&](annulus_comm_t* comm, int rank) {
    StreamUser user;
    const cuda::Stream stream = user.NewStream();
    std::byte* const memory = user.Allocate(kFew);
    UserGraph graph(stream, [&] {
      EXPECT_EQ(InStream(comm, stream, ANNULUS_CALL_ALLREDUCE, memory, memory, kFew), ANNULUS_OK) << LastMessage();
    });
    graph.Launch(stream);
    EXPECT_TRUE(user.Drain(stream));
    ResetOnce(&came, &reset, rank, 2);
    user.Forget();
    StreamUser next;
    std::byte* const again = next.Allocate(kFew);
    ExpectResetTold(comm, InStream(comm, next.NewStream(), ANNULUS_CALL_ALLREDUCE, again, again, kFew));
    graph.Destroy();
  });
}

// Only rank 1's process resets its GPU. Rank 0 is in a call that waits for it.
TEST(ResetTest, OfOneProcessAllHearOf) {
  const Cluster first(ProcessesConfig(2));
  const Cluster second(ProcessesConfig(2));
  for (const size_t count : {kFew, kMany}) {
    InProcesses(2, [&](int rank) {
      MappedRank own;
      own.Join(first, rank, 2);
      ExpectWorks(own.comm, own.fake, 2);
      if (rank == 1) own.fake->ResetDevice(0);
      std::byte* const memory = own.fake->Allocate(0, count * sizeof(int64_t));
      const annulus_status_t status = Sum(own.comm, memory, memory, count);
      EXPECT_TRUE(rank == 1 || status == ANNULUS_ABORTED) << LastMessage(own.comm);
      ExpectResetTold(own.comm, status);
      EXPECT_EQ(Verdict(own.comm).rank, 1);
      own.fake->Free(memory);
      own.Leave();
      own.Join(second, rank, 2);
      ExpectWorks(own.comm, own.fake, 2);
      own.Leave();
      EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
      EXPECT_EQ(own.fake->Counts().mappings, 0);
    });
  }
}

// The least over some calls: a rank that waits for long looks after its GPU.
TEST(ResetTest, ACallAsksTheDriverOnce) {
  OnProcesses(2, [](MappedRank* own) {
    const size_t bytes = kFew * sizeof(int64_t);
    std::vector<int64_t> on_host(kFew);
    std::byte* const in = own->fake->Allocate(0, bytes);
    std::byte* const out = own->fake->Allocate(0, bytes);
    const auto asks = [&](const void* from, void* to) {
      int64_t least = INT64_MAX;
      for (int i = 0; i < 20; ++i) {
        const int64_t before = own->fake->Counts().numbers;
        EXPECT_EQ(Sum(own->comm, from, to, kFew), ANNULUS_OK) << LastMessage(own->comm);
        least = std::min(least, own->fake->Counts().numbers - before);
      }
      return least;
    };
    EXPECT_EQ(asks(in, in), 1);
    EXPECT_EQ(asks(in, out), 1);
    EXPECT_EQ(asks(on_host.data(), on_host.data()), 0);
    own->fake->Free(in);
    own->fake->Free(out);
  });
}

}  // namespace
}  // namespace annulus
