// Links through shared memory that leave slices in GPUs' memory, on the stand-in for CUDA's driver: what settings and
// the driver refuse, and calls that end while a GPU reads the memory of a peer that gives up or dies.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/cuda/device_links.h"

namespace annulus {
namespace {

using cuda::FakeOptions;

// The rest of a rank of a job whose settings are not the usual ones.
void JoinWith(MappedRank* own, const Cluster& cluster, int rank, int nranks, const char* setting, const char* value) {
  own->rank = rank;
  own->nranks = nranks;
  UserConfig config = cluster.Config(rank);
  config.Set(setting, value);
  ASSERT_EQ(annulus_comm_create(&config, &own->comm), ANNULUS_OK) << LastMessage();
}

TEST(DeviceLinksEndsTest, OneEndMaySwitchItOff) {
  const Cluster cluster(ProcessesConfig(2));
  InProcesses(2, [&](int rank) {
    MappedRank own;
    JoinWith(&own, cluster, rank, 2, "shm_cuda_ipc", rank == 0 ? "off" : "auto");
    const LinkCalls calls{{own.fake, own.comm, rank, 2}};
    const Room in(own.fake, 0);
    const Room out(own.fake, 0);
    for (int round = 0; round < 5; ++round) {
      for (const LinkCall kind : {LinkCall::kMessage, LinkCall::kBroadcast}) {
        calls.Compare(kind, in, out, round);
        EXPECT_GT(calls.CrossingsOf(kind, in, out), 0);
      }
    }
    EXPECT_EQ(own.fake->Counts().mappings, 0);
    own.Leave();
  });
}

TEST(DeviceLinksEndsTest, TheProcessorsOfAGpuMayBeLeftAlone) {
  const Cluster cluster(ProcessesConfig(3));
  InProcesses(3, [&](int rank) {
    MappedRank own;
    JoinWith(&own, cluster, rank, 3, "device_reduce", "cpu");
    const LinkCalls calls{{own.fake, own.comm, rank, 3}};
    const Room in(own.fake, 0);
    const Room out(own.fake, 0);
    EXPECT_TRUE(calls.GoesWithoutHost(LinkCall::kMessage, in, out));
    for (const LinkCall kind : kAll) calls.Compare(kind, in, out, static_cast<int>(kind));
    own.Leave();
    EXPECT_EQ(own.fake->Counts().launches, 0);
    EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
  });
}

// A driver maps nothing where something is mapped that its owner has freed.
TEST(DeviceLinksEndsTest, WhatALinkHasOpenedIsNotInTheWayOfFoldsOfWhatComesThere) {
  OnRanks(
      2, [](int) { return FakeOptions(); },
      [](const LinkCalls& own) {
        const Room out(own.fake, 0);
        auto freed = std::make_unique<Room>(own.fake, 0);
        ASSERT_TRUE(own.GoesWithoutHost(LinkCall::kBroadcast, *freed, out));
        const std::byte* const begin = freed->data();
        freed.reset();
        std::vector<std::unique_ptr<Room>> rooms;
        do {
          rooms.push_back(std::make_unique<Room>(own.fake, 0));
        } while (rooms.back()->data() != begin && rooms.size() < 20);
        const Room& in = *rooms.back();
        ASSERT_EQ(in.data(), begin) << "the system gives other addresses";
        const size_t count = kLinkCallBytes / sizeof(float);
        bool is_fold = false;
        for (int round = 0; round < kMostWarmUps && !is_fold; ++round) {
          const int64_t before = own.SumOf(own.fake->Counts().crossings);
          ASSERT_EQ(own.Run(FoldKind::kAllreduce, in.data(), out.data(), count), ANNULUS_OK) << LastMessage(own.comm);
          is_fold = own.SumOf(own.fake->Counts().crossings) == before;
        }
        EXPECT_TRUE(is_fold);
        own.FoldCalls::Compare(FoldKind::kAllreduce, in.data(), out.data(), count);
        EXPECT_TRUE(own.GoesWithoutHost(LinkCall::kBroadcast, in, out));
        own.Compare(LinkCall::kBroadcast, in, out);
      });
}

// What a driver refuses to name or to map is copied. What it did not map it is asked for again.
TEST(DeviceLinksEndsTest, WhatTheDriverRefusesGoesThroughSlots) {
  for (const char* const function : {"cuIpcGetMemHandle", "cuIpcOpenMemHandle"}) {
    OnRanks(
        2, [](int) { return FakeOptions(); },
        [function](const LinkCalls& own) {
          const Room in(own.fake, 0);
          const Room out(own.fake, 0);
          own.fake->Fail(function, cuda::Result::kOutOfMemory, cuda::FakeControl::kEveryCall);
          for (int round = 0; round < 5; ++round) own.Compare(LinkCall::kMessage, in, out, round);
          EXPECT_GT(own.CrossingsOf(LinkCall::kMessage, in, out), 0) << function;
          constexpr int kNeverMore = 1'000'000;
          own.fake->Fail(function, cuda::Result::kOutOfMemory, kNeverMore);
          if (function == std::string("cuIpcOpenMemHandle")) {
            EXPECT_TRUE(own.GoesWithoutHost(LinkCall::kMessage, in, out));
          }
          const Room other(own.fake, 0);
          EXPECT_TRUE(own.GoesWithoutHost(LinkCall::kMessage, other, out)) << function;
        });
  }
}

TEST(DeviceLinksEndsTest, MemoryOfPoolsAndOfOtherKindsGoesThroughSlots) {
  OnRanks(
      2, [](int) { return FakeOptions{.shares_memory = false}; },
      [](const LinkCalls& own) {
        const Room in(own.fake, 0);
        const Room out(own.fake, 0);
        for (int round = 0; round < 3; ++round) own.Compare(LinkCall::kMessage, in, out, round);
        EXPECT_GT(own.CrossingsOf(LinkCall::kMessage, in, out), 0);
      });
}

TEST(DeviceLinksEndsTest, AnAbortEndsCallsWhoseMemoryIsRead) {
  for (int aborts = 0; aborts < 2; ++aborts) {
    const Cluster first(ProcessesConfig(2));
    const Cluster second(ProcessesConfig(2));
    InProcesses(2, [&](int rank) {
      MappedRank own;
      own.Join(first, rank, 2);
      const Room in(own.fake, 0);
      const Room out(own.fake, 0);
      const LinkCalls calls{{own.fake, own.comm, rank, 2}};
      ASSERT_TRUE(calls.GoesWithoutHost(LinkCall::kMessage, in, out));
      annulus_barrier(own.comm);
      own.fake->Hold(true);
      // The other rank's abort may come before anything is read here.
      std::atomic<bool> ended{false};
      std::thread ends([&] {
        while (own.fake->Counts().pending == 0 && !ended.load()) poll(nullptr, 0, 1);
        if (rank == aborts) annulus_comm_abort(own.comm, "enough");
        own.fake->Hold(false);
      });
      const annulus_status_t status = calls.Do(LinkCall::kMessage, in.data(), out.data());
      ended.store(true);
      EXPECT_TRUE(status == ANNULUS_OK || status == ANNULUS_ABORTED) << status;
      ends.join();
      EXPECT_EQ(own.fake->Counts().pending, 0) << "work is left that reads memory of a peer";
      annulus_comm_destroy(own.comm);
      EXPECT_EQ(own.fake->Counts().mappings, 0);
      own.Join(second, rank, 2);
      const LinkCalls again{{own.fake, own.comm, rank, 2}};
      EXPECT_TRUE(again.GoesWithoutHost(LinkCall::kMessage, in, out));
      again.Compare(LinkCall::kMessage, in, out);
      own.Leave();
      EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
    });
  }
}

TEST(DeviceLinksEndsTest, ARankThatDiesTakesItsMemoryFromNobody) {
  const Cluster first(ProcessesConfig(3));
  const Cluster second(ProcessesConfig(2));
  constexpr int kDies = 2;
  InProcesses(
      3,
      [&](int rank) {
        MappedRank own;
        own.Join(first, rank, 3);
        const Room in(own.fake, 0);
        const Room out(own.fake, 0);
        const LinkCalls calls{{own.fake, own.comm, rank, 3}};
        ASSERT_TRUE(calls.GoesWithoutHost(LinkCall::kMessage, in, out));
        const auto process = static_cast<pid_t>(own.SumOf(rank == kDies ? getpid() : 0));
        std::thread killer;
        // It reads the memory of the one that is killed.
        if (rank == 0) {
          own.fake->Hold(true);
          killer = std::thread([&] { KillDuringWork(own.fake, process); });
        }
        const annulus_status_t status = calls.Do(LinkCall::kMessage, in.data(), out.data());
        EXPECT_TRUE(status == ANNULUS_OK || status == ANNULUS_PEER_LOST) << status;
        if (rank == 0) killer.join();
        annulus_comm_destroy(own.comm);
        own.Join(second, rank, 2);
        const LinkCalls again{{own.fake, own.comm, rank, 2}};
        EXPECT_TRUE(again.GoesWithoutHost(LinkCall::kMessage, in, out));
        own.Leave();
        EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
      },
      kDies);
}

}  // namespace
}  // namespace annulus
