// Collectives in one fold on memory of the virtual memory API, in real processes on the stand-in for CUDA's driver: one
// piece of memory and several side by side, made to be passed on or not, beside memory of cudaMalloc, replaced at the
// same address, and what a driver or a system may refuse.
#include <sys/resource.h>

#include <thread>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/cuda/mapped_fold.h"

namespace annulus {
namespace {

constexpr size_t kCount = 30'011;
constexpr size_t kPiece = size_t{64} << 10;  // The stand-in's granularity.
// Calls after which something that has failed for a while was tried again.
constexpr int kMostCallsOff = 200;
constexpr FoldKind kKinds[] = {FoldKind::kAllreduce, FoldKind::kReduceScatter, FoldKind::kAllgather};

// Room for `count` elements of each rank, `before` bytes into it.
MappedShape ShapeOf(size_t count, int nranks, size_t pieces_of = 0, size_t before = 0) {
  return {count * sizeof(float) * static_cast<size_t>(nranks) + before, pieces_of, true};
}

class MappedFoldTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  }
};

// Calls of all kinds, twice each: each is one launch and no copy, and what is known is not passed on again.
void ExpectFolds(MappedRank* own, std::byte* in, std::byte* out, int64_t most_files) {
  MappedRank::Work before = own->Done();
  const MappedRank::Work first = before;
  for (const int round : {0, 1}) {
    for (const FoldKind kind : kKinds) {
      own->Compare(kind, in, out, kCount, round);
      const MappedRank::Work now = own->Done();
      EXPECT_EQ(now.launches - before.launches, 1) << "kind " << static_cast<int>(kind);
      EXPECT_EQ(now.copies - before.copies, 0);
      EXPECT_TRUE(round == 0 || now.exports == before.exports);
      before = now;
    }
  }
  EXPECT_EQ(before.imports - first.imports, most_files);
}

TEST_F(MappedFoldTest, OnePieceIsFoldedInOneLaunchAndMappedOnce) {
  OnProcesses(3, [](MappedRank* own) {
    const auto in = own->Make(ShapeOf(kCount, 3));
    const auto out = own->Make(ShapeOf(kCount, 3));
    // Rank 0 maps the input and the output of two others.
    ExpectFolds(own, in->data(), out->data(), 4);
  });
}

TEST_F(MappedFoldTest, SeveralPiecesSideBySideAreMappedSideBySide) {
  OnProcesses(3, [](MappedRank* own) {
    constexpr size_t kBefore = 40'000;  // Not where a piece begins.
    const auto in = own->Make(ShapeOf(kCount, 3, kPiece, kBefore));
    const auto out = own->Make(ShapeOf(kCount, 3, 2 * kPiece, kBefore));
    own->Compare(FoldKind::kAllreduce, in->data() + kBefore, in->data() + kBefore, kCount);
    const MappedRank::Work before = own->Done();
    for (const FoldKind kind : kKinds) own->Compare(kind, in->data() + kBefore, out->data() + kBefore, kCount);
    const MappedRank::Work after = own->Done();
    EXPECT_EQ(after.launches - before.launches, 3);
    EXPECT_EQ(after.copies - before.copies, 0);
    EXPECT_GT(after.imports - before.imports, 4);
  });
}

TEST_F(MappedFoldTest, BuffersInOneSegmentShareIt) {
  OnProcesses(2, [](MappedRank* own) {
    const auto segment = own->Make({20 * kPiece, kPiece, true});
    // Neighbours whose pieces overlap, in turn: each is mapped once.
    for (int round = 0; round < 4; ++round) {
      const MappedRank::Work before = own->Done();
      for (size_t i = 0; i < 4; ++i) {
        std::byte* const in = segment->data() + i * 130'000;
        own->Compare(FoldKind::kAllreduce, in, in + 640'000, kCount, round);
      }
      const MappedRank::Work after = own->Done();
      EXPECT_EQ(after.launches - before.launches, 4);
      EXPECT_EQ(after.imports - before.imports > 0, round == 0);
    }
  });
}

// The other way: slices are copied and reduced one by one.
void ExpectOtherWay(MappedRank* own, std::byte* in, std::byte* out, size_t count = kCount) {
  for (const int round : {0, 1}) {
    const MappedRank::Work before = own->Done();
    own->Compare(FoldKind::kAllreduce, in, out, count, round);
    EXPECT_GT(own->Done().launches - before.launches, 1);
  }
}

TEST_F(MappedFoldTest, MoreThan64PiecesGoTheOtherWay) {
  OnProcesses(2, [](MappedRank* own) {
    const auto most = own->Make({64 * kPiece, kPiece, true});
    const auto too_many = own->Make({65 * kPiece, kPiece, true});
    const MappedRank::Work before = own->Done();
    own->Compare(FoldKind::kAllreduce, most->data(), most->data(), 64 * kPiece / sizeof(float));
    EXPECT_EQ(own->Done().launches - before.launches, 1);
    ExpectOtherWay(own, too_many->data(), too_many->data(), 65 * kPiece / sizeof(float));
    EXPECT_EQ(own->SumOf(own->fake->Counts().imports), 64);
  });
}

TEST_F(MappedFoldTest, WhatCannotBePassedOnGoesTheOtherWay) {
  OnProcesses(3, [](MappedRank* own) {
    MappedShape shape = ShapeOf(kCount, 3);
    const auto in = own->Make(shape);
    shape.is_shareable = own->rank != 1;
    const auto out = own->Make(shape);
    ExpectOtherWay(own, in->data(), out->data());
    EXPECT_EQ(own->Done().exports, 0);
  });
}

TEST_F(MappedFoldTest, ABufferThatEndsInSuchMemoryDoesNotEndTheSharingOfOthers) {
  OnProcesses(2, [](MappedRank* own) {
    const auto good = own->Make(ShapeOf(kCount, 2, kPiece));
    const auto bad = own->Make(ShapeOf(kCount, 2, kPiece));
    ASSERT_TRUE(bad->Replace(1, /*is_shareable=*/false).ok());
    ExpectOtherWay(own, bad->data(), bad->data());
    const MappedRank::Work before = own->Done();
    own->Compare(FoldKind::kAllreduce, good->data(), good->data(), kCount);
    EXPECT_EQ(own->Done().launches - before.launches, 1);
  });
}

TEST_F(MappedFoldTest, MemoryOfAPoolGoesTheOtherWay) {
  OnProcesses(2,
              [](MappedRank* own) {
                const auto memory = own->Make(ShapeOf(kCount, 2));
                ExpectOtherWay(own, memory->data(), memory->data());
                EXPECT_EQ(own->Done().exports, 0);
              },
              {.is_pool = true});
}

TEST_F(MappedFoldTest, BesideMemoryOfCudaMalloc) {
  for (int which = 0; which < 3; ++which) {
    OnProcesses(3, [which](MappedRank* own) {
      const auto mapped = own->Make(ShapeOf(kCount, 3, own->rank == 2 ? kPiece : 0));
      std::byte* const plain = own->fake->Allocate(0, kCount * 3 * sizeof(float));
      const bool is_plain = own->rank == which;
      const MappedRank::Work before = own->Done();
      std::byte* const other = own->fake->Allocate(0, kCount * 3 * sizeof(float));
      for (const FoldKind kind : kKinds) own->Compare(kind, is_plain ? other : mapped->data(), plain, kCount);
      own->Compare(FoldKind::kAllreduce, plain, is_plain ? other : mapped->data(), kCount);
      EXPECT_EQ(own->Done().launches - before.launches, 4);
      own->fake->Free(plain);
      own->fake->Free(other);
    });
  }
}

TEST_F(MappedFoldTest, MemoryThatWasReplacedAtItsAddressIsNeverTakenForTheOld) {
  OnProcesses(2, [](MappedRank* own) {
    const auto in = own->Make(ShapeOf(kCount, 2, kPiece));
    const auto out = own->Make(ShapeOf(kCount, 2, kPiece));
    const size_t pieces = kCount * sizeof(float) / kPiece + 1;
    for (int round = 0; round < 12; ++round) {
      // With the stand-in the handles of the new pieces are the numbers of the old ones, unless these are held.
      const size_t changed = static_cast<size_t>(round) % pieces;
      ASSERT_TRUE(in->Replace(changed).ok());
      ASSERT_TRUE(round % 3 == 0 || out->Replace(pieces - 1 - changed).ok());
      const MappedRank::Work before = own->Done();
      own->Compare(FoldKind::kAllreduce, in->data(), out->data(), kCount, round);
      EXPECT_EQ(own->Done().launches - before.launches, 1);
    }
    // Old mappings and handles are given back: what is left is two of each buffer, on both sides.
    EXPECT_LT(own->fake->Counts().handles, 20);
  });
}

TEST_F(MappedFoldTest, AThousandFreshAllocationsLeaveNoDescriptorBehind) {
  OnProcesses(2, [](MappedRank* own) {
    int files = 0;
    for (int round = 0; round < 1'000; ++round) {
      const auto memory = own->Make({3 * kPiece, kPiece, true});
      std::byte* const data = memory->data() + kPiece - 4'000;
      std::vector<float> ones(kCount, 1);
      own->fake->Write(data, ones.data(), kCount * sizeof(float));
      ASSERT_EQ(own->Run(FoldKind::kAllreduce, data, data, kCount), ANNULUS_OK) << LastMessage(own->comm);
      own->fake->Read(ones.data(), data, kCount * sizeof(float));
      ASSERT_EQ(ones, std::vector<float>(kCount, 2));
      // The stand-in has a descriptor for each piece that is not free yet.
      const int now = OpenFiles() - static_cast<int>(own->fake->Counts().handles);
      if (round == 10) files = now;
      ASSERT_TRUE(round <= 10 || now == files) << "round " << round << ": " << now << " instead of " << files;
    }
    EXPECT_EQ(own->Done().launches, 1'000);
  });
}

TEST_F(MappedFoldTest, WhatTheDriverRefusesGoesTheOtherWay) {
  for (const char* const function :
       {"cuMemGetAddressRange", "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    OnProcesses(2, [function](MappedRank* own) {
      const auto first = own->Make(ShapeOf(kCount, 2, kPiece));
      const auto second = own->Make(ShapeOf(kCount, 2, kPiece));
      own->SumOf(0);
      own->fake->Fail(function, cuda::Result::kNotSupported, 0);
      const MappedRank::Work before = own->Done();
      own->Compare(FoldKind::kAllreduce, first->data(), first->data(), kCount);
      EXPECT_GT(own->Done().launches - before.launches, 1) << function;
      own->Compare(FoldKind::kAllreduce, second->data(), second->data(), kCount);
    });
  }
}

TEST_F(MappedFoldTest, ADriverWithoutTheApiSharesWhatItDid) {
  for (const char* const function : {"cuMemRetainAllocationHandle", "cuMemMap"}) {
    OnProcesses(2,
                [](MappedRank* own) {
                  std::byte* const plain = own->fake->Allocate(0, kCount * sizeof(float));
                  own->Compare(FoldKind::kAllreduce, plain, plain, kCount);
                  EXPECT_EQ(own->Done().launches, 1);
                  own->fake->Free(plain);
                },
                {.missing = function});
  }
}

TEST_F(MappedFoldTest, AProcessWithoutFreeDescriptorsGoesTheOtherWay) {
  OnProcesses(2, [](MappedRank* own) {
    const auto memory = own->Make(ShapeOf(kCount, 2));
    own->Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
    const auto other = own->Make(ShapeOf(kCount, 2, kPiece));
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit before = limit;
    // Rank 0 has no room for a socket, or for one and no descriptors.
    for (const int room : {0, 1, 2}) {
      const int next = dup(0);
      close(next);
      limit.rlim_cur = static_cast<rlim_t>(next + room);
      if (own->rank == 0) setrlimit(RLIMIT_NOFILE, &limit);
      own->Compare(FoldKind::kAllreduce, other->data(), other->data(), kCount, room);
      setrlimit(RLIMIT_NOFILE, &before);
      EXPECT_EQ(own->Done().imports, 1) << room;
    }
    // Then it is asked for again, some calls later.
    for (int i = 0; i < kMostCallsOff && own->Done().imports == 1; ++i)
      own->Compare(FoldKind::kAllreduce, other->data(), other->data(), kCount);
    EXPECT_EQ(own->Done().imports, 3);
  });
}

TEST_F(MappedFoldTest, AnOwnerWithoutFreeDescriptorsOffersItsMemoryAgainLater) {
  OnProcesses(2, [](MappedRank* own) {
    const auto memory = own->Make(ShapeOf(kCount, 2, kPiece));
    own->SumOf(0);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit before = limit;
    const int next = dup(0);
    close(next);
    limit.rlim_cur = static_cast<rlim_t>(next + 1);  // For its socket.
    if (own->rank == 1) setrlimit(RLIMIT_NOFILE, &limit);
    own->Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(own->Done().imports, 0);
    for (int i = 0; i < kMostCallsOff && own->Done().imports == 0; ++i)
      own->Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
    EXPECT_EQ(own->Done().imports, 2);
  });
}

// The descriptors of one letter are all that a process needs at a time, beside sockets, and what the stand-in keeps.
TEST_F(MappedFoldTest, LettersOfAllRanksDoNotLieOpenTogether) {
  OnProcesses(3, [](MappedRank* own) {
    constexpr size_t kPieces = 40;
    const auto in = own->Make({kPieces * kPiece, kPiece, true});
    const auto out = own->Make({kPieces * kPiece, kPiece, true});
    own->SumOf(0);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit before = limit;
    const int next = dup(0);
    close(next);
    constexpr size_t kSockets = 4;
    limit.rlim_cur = static_cast<rlim_t>(next) + 4 * kPieces + kPieces + kSockets;
    if (own->rank == 0) setrlimit(RLIMIT_NOFILE, &limit);
    own->Compare(FoldKind::kAllreduce, in->data(), out->data(), kPieces * kPiece / sizeof(float));
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(own->Done().imports, static_cast<int64_t>(4 * kPieces));
    EXPECT_EQ(own->Done().launches, 1);
  });
}

TEST_F(MappedFoldTest, CommunicatorsOfAProcessShareMappings) {
  const Cluster second(ProcessesConfig(2));
  OnProcesses(2, [&](MappedRank* own) {
    annulus_comm_t* comms[] = {own->comm, nullptr};
    own->Join(second, own->rank, 2);
    comms[1] = own->comm;
    const auto memory = own->Make(ShapeOf(kCount, 2, kPiece));
    for (int round = 0; round < 4; ++round) {
      own->comm = comms[round % 2];
      own->Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount, round);
    }
    EXPECT_EQ(own->Done().imports, static_cast<int64_t>(kCount * sizeof(float) / kPiece + 1));
    own->Leave();
    own->comm = comms[0];
  });
}

TEST_F(MappedFoldTest, AnOwnerThatDiesTakesItsMemoryFromNobody) {
  const Cluster first(ProcessesConfig(3));
  const Cluster second(ProcessesConfig(2));
  constexpr int kDies = 2;
  InProcesses(
      3,
      [&](int rank) {
        MappedRank own;
        own.Join(first, rank, 3);
        const auto memory = own.Make(ShapeOf(kCount, 3, kPiece));
        own.Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
        const auto process = static_cast<pid_t>(own.SumOf(rank == kDies ? getpid() : 0));
        std::thread killer;
        if (rank == 0) {
          own.fake->Hold(true);
          killer = std::thread([&] { KillDuringWork(own.fake, process); });
        }
        const annulus_status_t status = own.Run(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
        EXPECT_TRUE(status == ANNULUS_OK || status == ANNULUS_PEER_LOST) << status;
        if (rank == 0) killer.join();
        annulus_comm_destroy(own.comm);
        own.Join(second, rank, 2);
        own.Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount, 1);
        own.Leave();
        EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
      },
      kDies);
}

TEST_F(MappedFoldTest, RanksOfOneProcessWorkOnItWhereItIs) {
  InProcesses(1, [](int) {
    const MappedRank process;
    Cluster(ProcessesConfig(3)).Run([&](annulus_comm_t* comm, int rank) {
      const FoldCalls own{process.fake, comm, rank, 3};
      const auto memory = process.Make(ShapeOf(kCount, 3, kPiece));
      own.Compare(FoldKind::kAllreduce, memory->data(), memory->data(), kCount);
      annulus_barrier(comm);
    });
    EXPECT_EQ(process.fake->Counts().launches, 1);
    EXPECT_EQ(process.fake->Counts().exports, 0);
    EXPECT_EQ(process.fake->Violations(), std::vector<std::string>());
  });
}

}  // namespace
}  // namespace annulus
