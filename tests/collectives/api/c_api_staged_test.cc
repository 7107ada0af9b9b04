// Small calls on device memory, which are staged as a whole: what each of them has the GPU do, which ones are small,
// and what they take. Their results are compared in the suites of all collectives (c_api_collectives_test.cc and
// others), whose buffers lie on devices too.
#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr int kRanks = 3;
constexpr size_t kStagedBytes = 512 * 1024;  // As the library has it; inputs and outputs together.
constexpr size_t kMostCount = kStagedBytes / 2 / sizeof(int64_t);

struct Work {
  int64_t copies = 0;
  int64_t launches = 0;
  bool operator==(const Work&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Work& work) {
  return out << work.copies << " copies and " << work.launches << " kernels";
}

// One rank, which has buffers on GPU 0.
class StagedRank {
 public:
  StagedRank(annulus_comm_t* comm, int rank) : comm_(comm), rank_(rank), fake_(LoadDriver()) {
    for (std::byte*& each : buffers_) each = fake_->Allocate(0, kBytes);
  }
  ~StagedRank() {
    for (std::byte* const each : buffers_) fake_->Free(each);
  }
  StagedRank(const StagedRank&) = delete;
  StagedRank& operator=(const StagedRank&) = delete;

  annulus_comm_t* comm() const { return comm_; }
  int rank() const { return rank_; }
  std::byte* in() const { return buffers_[0]; }
  std::byte* out() const { return buffers_[1]; }
  void Write(std::byte* to, const Numbers& from) { fake_->Write(to, from.data(), from.size() * sizeof from[0]); }
  Numbers Read(const std::byte* from, size_t count) {
    Numbers read(count);
    fake_->Read(read.data(), from, count * sizeof read[0]);
    return read;
  }

  // What the GPU does for all ranks while each makes this call, which must succeed.
  Work WorkOf(const std::function<annulus_status_t()>& call) {
    const Work before = Now();
    EXPECT_EQ(call(), ANNULUS_OK) << LastMessage(comm_);
    const Work after = Now();
    return {after.copies - before.copies, after.launches - before.launches};
  }

 private:
  static constexpr size_t kBytes = 2 * kStagedBytes;

  // While no rank has work there.
  Work Now() {
    EXPECT_EQ(annulus_barrier(comm_), ANNULUS_OK);
    const cuda::FakeCounts counts = fake_->Counts();
    EXPECT_EQ(annulus_barrier(comm_), ANNULUS_OK);
    return {counts.copies, counts.launches};
  }

  annulus_comm_t* const comm_;
  const int rank_;
  cuda::FakeControl* const fake_;
  std::byte* buffers_[2];
};

// After it has loaded the driver.
ClusterConfig Over(const char* transport) {
  LoadDriver();
  ClusterConfig config;
  config.nranks = kRanks;
  config.transport = transport;
  config.algorithm = "ring";  // One fold would take the larger calls over shared memory, which needs no copies.
  return config;
}

class StagedTest : public testing::TestWithParam<const char*> {};

TEST_P(StagedTest, ASmallCollectiveIsOneCopyOfEachBuffer) {
  constexpr annulus_type_t kType = ANNULUS_INT64;
  Cluster(Over(GetParam())).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    std::byte* const in = rank.in();
    std::byte* const out = rank.out();
    for (const size_t count : {size_t{1}, size_t{100}, size_t{10'000}}) {
      SCOPED_TRACE(count);
      const size_t counts[kRanks] = {count, 0, 2 * count};
      const size_t offsets[kRanks] = {0, count, count + 1};
      const size_t own = counts[number];
      const auto expect = [&](int64_t copies, const std::function<annulus_status_t()>& call) {
        EXPECT_EQ(rank.WorkOf(call), (Work{copies, 0}));
      };
      expect(2 * kRanks, [&] { return annulus_allreduce(comm, in, out, count, kType, ANNULUS_SUM); });
      expect(2 * kRanks, [&] { return annulus_allreduce(comm, in, in, count, kType, ANNULUS_AVG); });
      expect(2 * kRanks, [&] { return annulus_reduce_scatter(comm, in, out, count, kType, ANNULUS_MAX); });
      expect(2 * kRanks, [&] { return annulus_allgather(comm, in, out, count, kType); });
      expect(1 + kRanks, [&] { return annulus_broadcast(comm, in, out, count, kType, 1); });
      expect(kRanks + 1, [&] { return annulus_reduce(comm, in, out, count, kType, ANNULUS_SUM, 2); });
      expect(kRanks + 1, [&] { return annulus_gather(comm, in, out, count, kType, 0); });
      expect(1 + kRanks, [&] { return annulus_scatter(comm, in, out, count, kType, 0); });
      expect(2 * kRanks, [&] { return annulus_alltoall(comm, in, out, count, kType); });
      // Rank 1 has nothing of its own. Of the parts of all, the last one does not follow the one before.
      expect(2 + 2 * kRanks, [&] { return annulus_allgatherv(comm, in, own, out, counts, offsets, kType); });
      expect(0, [&] { return annulus_allreduce(comm, in, out, 0, kType, ANNULUS_SUM); });
      expect(0, [&] { return annulus_barrier(comm); });
    }
  });
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

// They repeat one that was before, and have to wait for a rank that is late.
TEST_P(StagedTest, CallsOnHostMemoryBetweenThemTakeNoCopies) {
  ClusterConfig config = Over(GetParam());
  config.algorithm = "auto";
  Tally entering;
  Cluster(config).Run([&](annulus_comm_t* comm, int number) {
    constexpr size_t kCount = 50;
    StagedRank rank(comm, number);
    for (int round = 0; round < 6; ++round) {
      const Numbers own = Contribution(number, kCount, round);
      Numbers sum(kCount);
      const Work work = rank.WorkOf([&] {
        if (number != round % kRanks) {
          entering.Add();
        } else {
          EXPECT_TRUE(entering.WaitFor((kRanks - 1) * (round + 1)));
        }
        return annulus_allreduce(comm, own.data(), sum.data(), kCount, ANNULUS_INT64, ANNULUS_SUM);
      });
      EXPECT_EQ(work, (Work{0, 0}));
      EXPECT_EQ(sum, SumOfAll(kRanks, kCount, round));
      rank.Write(rank.in(), own);
      ASSERT_EQ(annulus_allreduce(comm, rank.in(), rank.out(), 2, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
      EXPECT_EQ(rank.Read(rank.out(), 2), SumOfAll(kRanks, 2, round));
    }
  });
}

// Each of its slices is one copy, and it has one.
TEST_P(StagedTest, ASmallMessageIsOneCopyOnEachSide) {
  Cluster(Over(GetParam())).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    for (const size_t count : {size_t{1}, size_t{8192}}) {
      const Work work = rank.WorkOf([&] {
        if (number == 0) return annulus_send(comm, rank.in(), count, ANNULUS_INT64, 1);
        return number == 1 ? annulus_recv(comm, rank.out(), count, ANNULUS_INT64, 0) : ANNULUS_OK;
      });
      EXPECT_EQ(work, (Work{2, 0})) << count;
    }
  });
}

TEST_P(StagedTest, AsynchronousCallsAndGroupsAreStagedToo) {
  Cluster(Over(GetParam())).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    constexpr int kTensors = 40;  // More copies than the GPU's queue takes at a time.
    constexpr size_t kCount = 50;
    const Numbers input = Contribution(number, kTensors * kCount, 1);
    for (const int tensors : {1, 2, kTensors}) {
      SCOPED_TRACE(tensors);
      rank.Write(rank.in(), input);
      Calls calls;
      for (int i = 0; i < tensors; ++i) {
        const size_t begin = i * kCount * sizeof(int64_t);
        // The last one in place.
        std::byte* const out = (i + 1 == tensors ? rank.in() : rank.out()) + begin;
        calls.Allreduce(rank.in() + begin, out, kCount, ANNULUS_INT64, ANNULUS_SUM);
      }
      EXPECT_EQ(rank.WorkOf([&] { return calls.Do(comm); }), (Work{2 * kRanks * tensors, 0}));
      const Numbers sums = SumOfAll(kRanks, kTensors * kCount, 1);
      const size_t last = (tensors - 1) * kCount;
      EXPECT_EQ(rank.Read(rank.out(), last), Numbers(sums.begin(), sums.begin() + static_cast<int64_t>(last)));
      EXPECT_EQ(rank.Read(rank.in() + last * sizeof(int64_t), kCount),
                Numbers(sums.begin() + static_cast<int64_t>(last), sums.begin() + static_cast<int64_t>(last + kCount)));
    }
  });
}

// Only those of the other ranks' buffers that lie on the GPU are copied.
TEST_P(StagedTest, HostMemoryIsUsedWhereItIs) {
  Cluster(Over(GetParam())).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    Numbers host = Contribution(number, 100, 1);
    const void* const in = number == 0 ? rank.in() : reinterpret_cast<const std::byte*>(host.data());
    void* const out = number == 1 ? rank.out() : reinterpret_cast<std::byte*>(host.data());
    rank.Write(rank.in(), host);
    const Work work = rank.WorkOf([&] { return annulus_allreduce(comm, in, out, 100, ANNULUS_INT64, ANNULUS_SUM); });
    EXPECT_EQ(work, (Work{2, 0}));
    EXPECT_EQ(number == 1 ? rank.Read(rank.out(), 100) : host, SumOfAll(kRanks, 100, 1));
  });
}

// A call of eight bytes on host memory that comes again takes a short cut; what lies on a GPU must not.
TEST_P(StagedTest, CallsThatRepeatAreNotTakenForEachOther) {
  Cluster(Over(GetParam())).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    int64_t host = 0;
    for (int round = 0; round < 12; ++round) {
      const Numbers own = {number + round};
      const Numbers sum = {kRanks * round + 3};
      const bool is_on_gpu = round % 4 < 2;
      host = own[0];
      rank.Write(rank.in(), own);
      void* const buffer = is_on_gpu ? static_cast<void*>(rank.in()) : &host;
      annulus_request_t* request = nullptr;
      if (round % 3 == 0) {
        ASSERT_EQ(annulus_allreduce(comm, buffer, buffer, 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
      } else {
        ASSERT_EQ(annulus_allreduce_async(comm, buffer, buffer, 1, ANNULUS_INT64, ANNULUS_SUM, &request), ANNULUS_OK);
        ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
        EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      }
      EXPECT_EQ(is_on_gpu ? rank.Read(rank.in(), 1) : Numbers{host}, sum) << "round " << round;
      EXPECT_EQ(is_on_gpu ? host : rank.Read(rank.in(), 1)[0], own[0]) << "round " << round;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, StagedTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

// What the GPU does for an allreduce in place.
Work WorkOfSum(const ClusterConfig& config, size_t count) {
  Work work;
  Cluster(config).Run([&](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    const auto sum = [&] { return annulus_allreduce(comm, rank.in(), rank.in(), count, ANNULUS_INT64, ANNULUS_SUM); };
    const Work seen = rank.WorkOf(sum);
    if (number == 0) work = seen;
  });
  return work;
}

TEST(StagedSizeTest, TheSettingIsTheLargestSumOfInputsAndOutputs) {
  const Work staged = {2 * kRanks, 0};
  EXPECT_EQ(WorkOfSum(Over("shm"), kMostCount), staged);
  EXPECT_NE(WorkOfSum(Over("shm"), kMostCount + 1), staged);
  ClusterConfig config = Over("shm");
  config.device_staged_bytes = 4096;
  EXPECT_EQ(WorkOfSum(config, 256), staged);
  EXPECT_NE(WorkOfSum(config, 257), staged);
  config.device_staged_bytes = 0;
  EXPECT_NE(WorkOfSum(config, 20'000), staged);
}

TEST(StagedSizeTest, WhoAsksForTheGpusKernelsGetsThem) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has none";
  ClusterConfig config = Over("shm");
  config.device_reduce = "gpu";
  EXPECT_GT(WorkOfSum(config, 1).launches, 0);
  config.device_reduce = "cpu";
  EXPECT_EQ(WorkOfSum(config, 1), (Work{2 * kRanks, 0}));
}

// As one copy or kernel of the GPU's it needs no staging.
TEST(StagedSizeTest, ALoneRankIsNotStaged) {
  ClusterConfig config = Over("shm");
  config.nranks = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int number) {
    StagedRank rank(comm, number);
    const Work work =
        rank.WorkOf([&] { return annulus_allreduce(comm, rank.in(), rank.out(), 10, ANNULUS_INT64, ANNULUS_SUM); });
    EXPECT_EQ(work.copies + work.launches, 1);
  });
}

annulus_memory_t MemoryOf(annulus_comm_t* comm) {
  annulus_memory_t memory{};
  memory.struct_bytes = sizeof memory;
  EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
  return memory;
}

TEST(StagedMemoryTest, ItIsCountedAndStaysWithinTheLimit) {
  ClusterConfig config = Over("shm");
  uint64_t without = 0;
  for (const int64_t staged_bytes : {0, 4096, 1 << 20}) {
    config.device_staged_bytes = staged_bytes;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      const annulus_memory_t memory = MemoryOf(comm);
      if (rank != 0) return;
      if (staged_bytes == 0) without = memory.staging;
      EXPECT_EQ(memory.staging, without + static_cast<uint64_t>(staged_bytes));
    });
  }
  // No more than half of what the limit leaves; then calls are not staged.
  config.device_staged_bytes = -1;
  config.memory_bytes = 8 << 20;
  EXPECT_EQ(WorkOfSum(config, 1000).launches, 0);
  config.device_staged_bytes = 16 << 20;
  EXPECT_NE(WorkOfSum(config, 1000), (Work{2 * kRanks, 0}));
  Cluster(config).Run([](annulus_comm_t* comm, int) { EXPECT_LE(MemoryOf(comm).total, 8U << 20); });
}

}  // namespace
}  // namespace annulus
