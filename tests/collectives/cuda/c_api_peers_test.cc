// Collectives in one fold between the GPUs of a host, on the stand-in for CUDA's driver: the first rank on each GPU
// folds its chunks, in one launch without a copy, and reaches the others' memory of every kind. Ranks are threads of a
// process or processes, which see all GPUs or their own. GPUs that do not reach each other go the other way.
#include <thread>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/cuda/mapped_fold.h"

namespace annulus {
namespace {

using cuda::FakeLink;
using cuda::FakeOptions;

constexpr size_t kCount = 30'011;
constexpr size_t kPiece = size_t{64} << 10;
constexpr FoldKind kKinds[] = {FoldKind::kAllreduce, FoldKind::kReduceScatter, FoldKind::kAllgather};

// Pairs by NVLink, and PCIe between them.
FakeLink Pairs(int a, int b) { return a / 2 == b / 2 ? FakeLink::kNvlink : FakeLink::kPcie; }
// Pairs that do not reach each other.
FakeLink Islands(int a, int b) { return a / 2 == b / 2 ? FakeLink::kPcie : FakeLink::kNone; }
// GPU 0 does not reach GPU 1, which reaches it.
FakeLink OneWay(int a, int b) { return a == 0 && b == 1 ? FakeLink::kNone : FakeLink::kPcie; }

constexpr annulus_type_t kTypes[] = {ANNULUS_INT8,        ANNULUS_UINT8,       ANNULUS_INT16,     ANNULUS_UINT16,
                                     ANNULUS_INT32,       ANNULUS_UINT32,      ANNULUS_INT64,     ANNULUS_UINT64,
                                     ANNULUS_FLOAT16,     ANNULUS_FLOAT32,     ANNULUS_FLOAT64,   ANNULUS_BFLOAT16,
                                     ANNULUS_FLOAT8_E4M3, ANNULUS_FLOAT8_E5M2, ANNULUS_COMPLEX64, ANNULUS_COMPLEX128};

enum class Memory { kPlain, kOnePiece, kPieces, kOurs };
constexpr Memory kMemories[] = {Memory::kPlain, Memory::kOnePiece, Memory::kPieces, Memory::kOurs};

// Room for `bytes` bytes on a GPU.
class Buffer {
 public:
  Buffer(const MappedRank& process, Memory kind, int gpu, size_t bytes = kCount * sizeof(float) * 8)
      : fake_(process.fake), kind_(kind) {
    if (kind == Memory::kPlain) data_ = fake_->Allocate(gpu, bytes);
    if (kind == Memory::kOurs) {
      void* memory = nullptr;
      EXPECT_EQ(annulus_mem_alloc_device(bytes, gpu, &memory), ANNULUS_OK) << LastMessage();
      data_ = static_cast<std::byte*>(memory);
    }
    if (data_ != nullptr) return;
    mapped_ = process.Make({bytes, kind == Memory::kPieces ? kPiece : 0, true, gpu});
    data_ = mapped_->data();
  }
  ~Buffer() {
    if (kind_ == Memory::kPlain) fake_->Free(data_);
    if (kind_ == Memory::kOurs) {
      EXPECT_EQ(annulus_mem_free(data_), ANNULUS_OK);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  cuda::FakeControl* const fake_;
  const Memory kind_;
  std::byte* data_ = nullptr;
  std::unique_ptr<MappedMemory> mapped_;
};

class PeersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

// Calls body(process, calls) for each rank, in a thread of a process of its own; nothing may have been done wrong.
using Body = std::function<void(const MappedRank& process, const FoldCalls& own)>;
void OnThreads(const FakeOptions& options, int nranks, const Body& body) {
  InProcesses(1, [&](int) {
    const MappedRank process(options);
    Cluster(ProcessesConfig(nranks)).Run([&](annulus_comm_t* comm, int rank) {
      body(process, {process.fake, comm, rank, nranks});
      annulus_barrier(comm);
    });
    EXPECT_EQ(process.fake->Violations(), std::vector<std::string>());
    EXPECT_EQ(process.fake->Counts().handles, 0);
    EXPECT_EQ(process.fake->Counts().ranges, 0);
  });
}

// What a call adds to the work of all ranks, which are threads.
struct Added {
  int64_t launches;
  int64_t copies;
};
template <class Call>
Added CountCall(const FoldCalls& own, Call call) {
  annulus_barrier(own.comm);
  const cuda::FakeCounts before = own.fake->Counts();
  annulus_barrier(own.comm);
  call();
  annulus_barrier(own.comm);
  const cuda::FakeCounts after = own.fake->Counts();
  annulus_barrier(own.comm);
  return {after.launches - before.launches, after.copies - before.copies};
}

TEST_F(PeersTest, TheFirstRankOnEachGpuFoldsItsChunksInOneLaunch) {
  for (const int gpus : {2, 4}) {
    for (const int on_each : {1, 2}) {
      OnThreads({.devices = gpus, .link = Pairs}, gpus * on_each, [=](const MappedRank& process, const FoldCalls& own) {
        // Neighbours share a GPU, or every other rank does.
        const int gpu = gpus == 2 ? own.rank % gpus : own.rank / on_each;
        for (const Memory kind : kMemories) {
          const Buffer in(process, kind, gpu);
          const Buffer out(process, kind, gpu);
          for (const FoldKind call : kKinds) {
            const Added added =
                CountCall(own, [&] { own.Compare(call, in.data(), out.data(), kCount, static_cast<int>(call)); });
            EXPECT_EQ(added.launches, gpus) << "kind " << static_cast<int>(call);
            EXPECT_EQ(added.copies, 0);
          }
          own.Compare(FoldKind::kAllreduce, in.data(), in.data(), kCount);
        }
      });
    }
  }
}

TEST_F(PeersTest, ProcessesMapTheMemoryOfOtherGpus) {
  for (const bool sees_all : {true, false}) {
    for (const int gpus : {2, 4}) {
      const int on_each = gpus == 2 ? 2 : 1;
      const Cluster cluster(ProcessesConfig(gpus * on_each));
      InProcesses(gpus * on_each, [&](int rank) {
        // A process sees all GPUs, or its own as number 0.
        const int number = rank / on_each;
        MappedRank own({.devices = sees_all ? gpus : 1, .first_device = sees_all ? 0 : number, .link = Pairs});
        own.Join(cluster, rank, gpus * on_each);
        for (const Memory kind : kMemories) {
          const Buffer in(own, kind, sees_all ? number : 0);
          const Buffer out(own, kind, sees_all ? number : 0);
          for (const FoldKind call : kKinds) {
            const MappedRank::Work before = own.Done();
            own.Compare(call, in.data(), out.data(), kCount, static_cast<int>(call));
            const MappedRank::Work after = own.Done();
            EXPECT_EQ(after.launches - before.launches, gpus);
            EXPECT_EQ(after.copies - before.copies, 0);
          }
        }
        own.Leave();
        EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
        EXPECT_EQ(own.fake->Counts().mappings, 0);
        EXPECT_EQ(own.fake->Counts().handles, 0);
      });
    }
  }
}

TEST_F(PeersTest, EveryTypeAndOperationHasTheBitsOfHostMemory) {
  OnThreads({.devices = 2, .link = Islands}, 3, [](const MappedRank& process, const FoldCalls& own) {
    constexpr size_t kBytes = 60'000;
    const Buffer memory(process, Memory::kPlain, own.rank % 2, kBytes + 64);
    for (const annulus_type_t type : kTypes) {
      const size_t one = annulus_type_bytes(type);
      for (const annulus_op_t op : {ANNULUS_SUM, ANNULUS_PROD, ANNULUS_MIN, ANNULUS_MAX, ANNULUS_AVG}) {
        const bool is_complex = type == ANNULUS_COMPLEX64 || type == ANNULUS_COMPLEX128;
        if (is_complex && (op == ANNULUS_MIN || op == ANNULUS_MAX)) continue;
        std::mt19937 random(static_cast<unsigned>(100 * static_cast<int>(type) + own.rank));
        std::vector<unsigned char> input(kBytes);
        for (unsigned char& each : input) each = static_cast<unsigned char>(random());
        std::vector<unsigned char> expected(kBytes);
        const size_t count = kBytes / one - 1;
        ASSERT_EQ(annulus_allreduce(own.comm, input.data(), expected.data(), count, type, op), ANNULUS_OK);
        std::byte* const data = memory.data() + one * static_cast<size_t>(own.rank);
        own.fake->Write(data, input.data(), kBytes);
        const Added added = CountCall(own, [&] {
          ASSERT_EQ(annulus_allreduce(own.comm, data, data, count, type, op), ANNULUS_OK) << LastMessage(own.comm);
        });
        EXPECT_EQ(added.launches, 2) << "type " << type << ", operation " << op;
        std::vector<unsigned char> found(kBytes);
        own.fake->Read(found.data(), data, count * one);
        EXPECT_EQ(std::memcmp(found.data(), expected.data(), count * one), 0)
            << "type " << type << ", operation " << op;
      }
    }
  });
}

TEST_F(PeersTest, ARankMayChangeItsGpuAndItsMemory) {
  OnThreads({.devices = 4, .link = Pairs}, 3, [](const MappedRank& process, const FoldCalls& own) {
    for (int round = 0; round < 8; ++round) {
      const int gpu = (own.rank * (round % 3) + round) % 4;
      const Buffer in(process, kMemories[(round + own.rank) % 4], gpu);
      const Buffer out(process, kMemories[round % 4], gpu);
      own.Compare(kKinds[round % 3], in.data(), out.data(), kCount, round);
    }
    // An input on one and an output on another.
    const Buffer in(process, Memory::kPlain, own.rank);
    const Buffer out(process, Memory::kPlain, own.rank == 1 ? 2 : own.rank);
    own.Compare(FoldKind::kAllreduce, in.data(), out.data(), kCount);
  });
}

std::string WhyOf(annulus_comm_t* comm) {
  annulus_device_t info{};
  info.struct_bytes = sizeof info;
  EXPECT_EQ(annulus_comm_device(comm, &info), ANNULUS_OK);
  return info.why;
}

// All ranks go the other way: slices are reduced one by one.
void ExpectOtherWay(const MappedRank& process, const FoldCalls& own, Memory kind) {
  const Buffer in(process, kind, own.rank);
  const Buffer out(process, kind, own.rank);
  for (const FoldKind call : kKinds) {
    const Added added =
        CountCall(own, [&] { own.Compare(call, in.data(), out.data(), kCount, static_cast<int>(call)); });
    EXPECT_GT(added.copies + added.launches, own.nranks) << "kind " << static_cast<int>(call);
  }
}

TEST_F(PeersTest, GpusThatDoNotReachEachOtherGoTheOtherWay) {
  OnThreads({.devices = 4, .link = Islands}, 4, [](const MappedRank& process, const FoldCalls& own) {
    for (const Memory kind : kMemories) ExpectOtherWay(process, own, kind);
    // Any of eight pairs.
    EXPECT_TRUE(WhyOf(own.comm).ends_with("neither over NVLink nor over PCIe")) << WhyOf(own.comm);
  });
}

TEST_F(PeersTest, APairThatReachesOneWayOnlyGoesTheOtherWay) {
  OnThreads({.devices = 2, .link = OneWay}, 2, [](const MappedRank& process, const FoldCalls& own) {
    for (const Memory kind : kMemories) ExpectOtherWay(process, own, kind);
    EXPECT_EQ(WhyOf(own.comm), "GPU 0 cannot reach the memory of GPU 1, neither over NVLink nor over PCIe");
  });
}

TEST_F(PeersTest, ProcessesOnGpusThatDoNotReachEachOtherGoTheOtherWay) {
  for (const bool sees_all : {true, false}) {
    const Cluster cluster(ProcessesConfig(3));
    InProcesses(3, [&](int rank) {
      MappedRank own({.devices = sees_all ? 3 : 1, .first_device = sees_all ? 0 : rank, .link = Islands});
      own.Join(cluster, rank, 3);
      for (const Memory kind : kMemories) {
        const Buffer memory(own, kind, sees_all ? rank : 0);
        for (const int round : {0, 1}) {
          const MappedRank::Work before = own.Done();
          own.Compare(FoldKind::kAllreduce, memory.data(), memory.data(), kCount, round);
          EXPECT_GT(own.Done().launches - before.launches, 3);
        }
      }
      // Where it does not see the other GPU, mapping has failed, once for each.
      const std::string why = WhyOf(own.comm);
      EXPECT_NE(why.find(sees_all ? "neither over NVLink nor over PCIe" : "does not see: cu"), std::string::npos)
          << why;
      own.Leave();
      EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
    });
  }
}

TEST_F(PeersTest, AProgramMayHaveLetItsGpusInBefore) {
  OnThreads({.devices = 2}, 2, [](const MappedRank& process, const FoldCalls& own) {
    {
      const cuda::ScopedContext scope(process.driver(), process.ContextOf(own.rank));
      const cuda::Context other = process.ContextOf(1 - own.rank);
      EXPECT_EQ(process.driver()->CtxEnablePeerAccess(other, 0), cuda::Result::kSuccess);
    }
    const Buffer memory(process, Memory::kPlain, own.rank);
    for (const int round : {0, 1, 2}) {
      const Added added =
          CountCall(own, [&] { own.Compare(FoldKind::kAllreduce, memory.data(), memory.data(), kCount, round); });
      EXPECT_EQ(added.launches, 2);
    }
    // Once by the program and once by the library.
    EXPECT_EQ(own.fake->Counts().peers, 4);
  });
}

TEST_F(PeersTest, WhatTheDriverRefusesGoesTheOtherWay) {
  constexpr std::pair<const char*, Memory> kCases[] = {{"cuCtxEnablePeerAccess", Memory::kPlain},
                                                       {"cuDeviceCanAccessPeer", Memory::kPlain},
                                                       {"cuMemSetAccess", Memory::kPieces},
                                                       {"cuMemMap", Memory::kPieces}};
  for (const auto& each : kCases) {
    const char* const function = each.first;
    const Memory kind = each.second;
    OnThreads({.devices = 2}, 2, [&](const MappedRank& process, const FoldCalls& own) {
      const Buffer memory(process, kind, own.rank);
      annulus_barrier(own.comm);
      if (own.rank == 0) own.fake->Fail(function, cuda::Result::kOutOfMemory, 0);
      const auto call = [&] { own.Compare(FoldKind::kAllreduce, memory.data(), memory.data(), kCount); };
      EXPECT_GT(CountCall(own, call).copies, 0) << function;
      const Buffer other(process, kind, own.rank);
      const auto again = [&] { own.Compare(FoldKind::kAllreduce, other.data(), other.data(), kCount); };
      EXPECT_EQ(CountCall(own, again).launches, 2) << function;
    });
  }
}

// Planted: what the library asks for is not done.
TEST_F(PeersTest, AGpuThatWasNotLetInIsFound) {
  for (const Memory kind : {Memory::kPlain, Memory::kOnePiece}) {
    InProcesses(1, [kind](int) {
      const MappedRank process({.devices = 2});
      process.fake->Make(cuda::Mistake::kNoPeer);
      Cluster(ProcessesConfig(2)).Run([&](annulus_comm_t* comm, int rank) {
        const Buffer memory(process, kind, rank);
        EXPECT_NE(annulus_allreduce(comm, memory.data(), memory.data(), kCount, ANNULUS_FLOAT32, ANNULUS_SUM),
                  ANNULUS_OK);
      });
      process.fake->Make(cuda::Mistake::kNone);
    });
  }
}

TEST_F(PeersTest, ARankThatDiesTakesItsMemoryFromNobody) {
  for (const bool sees_all : {true, false}) {
    const Cluster first(ProcessesConfig(3));
    const Cluster second(ProcessesConfig(2));
    constexpr int kDies = 2;
    InProcesses(
        3,
        [&](int rank) {
          MappedRank own({.devices = sees_all ? 3 : 1, .first_device = sees_all ? 0 : rank, .link = Pairs});
          own.Join(first, rank, 3);
          const int gpu = sees_all ? rank : 0;
          const Buffer plain(own, Memory::kPlain, gpu);
          const Buffer mapped(own, Memory::kPieces, gpu);
          own.Compare(FoldKind::kAllreduce, plain.data(), mapped.data(), kCount);
          const auto process = static_cast<pid_t>(own.SumOf(rank == kDies ? getpid() : 0));
          std::thread killer;
          if (rank == 0) {
            own.fake->Hold(true);
            killer = std::thread([&] { KillDuringWork(own.fake, process); });
          }
          const annulus_status_t status = own.Run(FoldKind::kAllreduce, plain.data(), mapped.data(), kCount);
          EXPECT_TRUE(status == ANNULUS_OK || status == ANNULUS_PEER_LOST) << status;
          if (rank == 0) killer.join();
          annulus_comm_destroy(own.comm);
          own.Join(second, rank, 2);
          const MappedRank::Work before = own.Done();
          own.Compare(FoldKind::kAllreduce, plain.data(), mapped.data(), kCount, 1);
          EXPECT_EQ(own.Done().launches - before.launches, 2);
          own.Leave();
          EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
        },
        kDies);
  }
}

}  // namespace
}  // namespace annulus
