// Links through shared memory that leave slices in GPUs' memory, on the stand-in for CUDA's driver: messages,
// broadcasts, exchanges with parts of different sizes and groups go without host memory, with the bits that host memory
// has. Ranks are threads of a process or processes, with one GPU or several, which reach each other or do not; some may
// have their buffers in host memory, and buffers come and go.
#include <set>

#include "tests/collectives/cuda/device_links.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

using cuda::FakeLink;
using cuda::FakeOptions;

// Of each kind of call; with sanitizers the calls take so long that one must do.
constexpr int kRounds = kSanitized ? 1 : 3;

FakeLink Islands(int, int) { return FakeLink::kNone; }

TEST(DeviceLinksTest, CallsGoWithoutHostMemoryOnceAllocationsAreKnown) {
  for (const int nranks : {2, 3}) {
    OnOneGpuEach(nranks, [](const LinkCalls& own) {
      const Room in(own.fake, 0);
      const Room out(own.fake, 0);
      for (const LinkCall kind : kWithoutHost) {
        EXPECT_TRUE(own.GoesWithoutHost(kind, in, out)) << "kind " << static_cast<int>(kind);
        EXPECT_EQ(own.CrossingsOf(kind, in, out), 0);
      }
      for (const LinkCall kind : kAll) own.Compare(kind, in, out, static_cast<int>(kind));
    });
  }
}

TEST(DeviceLinksTest, GpusThatReachEachOtherReadEachOther) {
  const LinkBody body = [](const LinkCalls& own) {
    const Room in(own.fake, own.rank);
    const Room out(own.fake, own.rank);
    for (const LinkCall kind : kWithoutHost)
      EXPECT_TRUE(own.GoesWithoutHost(kind, in, out)) << "kind " << static_cast<int>(kind);
    for (const LinkCall kind : kAll) own.Compare(kind, in, out, static_cast<int>(kind));
  };
  OnThreads(2, {.devices = 2}, body);
  OnRanks(
      2, [](int) { return FakeOptions{.devices = 2}; }, body);
}

TEST(DeviceLinksTest, GpusThatDoNotGoThroughSlots) {
  const LinkBody body = [](const LinkCalls& own) {
    const Room in(own.fake, own.rank);
    const Room out(own.fake, own.rank);
    for (const LinkCall kind : kAll) {
      for (int round = 0; round < kRounds; ++round) own.Compare(kind, in, out, round);
      EXPECT_GT(own.CrossingsOf(kind, in, out), 0);
    }
  };
  OnThreads(2, {.devices = 2, .link = Islands}, body);
  OnRanks(
      2, [](int) { return FakeOptions{.devices = 2, .link = Islands}; }, body);
}

// Peers know the allocations of ranks by then, and send in place.
TEST(DeviceLinksTest, RanksMayChangeToHostMemoryAndBack) {
  OnOneGpuEach(3, [](const LinkCalls& own) {
    const Room in(own.fake, 0);
    const Room out(own.fake, 0);
    const Room host_in(own.fake, -1);
    const Room host_out(own.fake, -1);
    for (const LinkCall kind : kWithoutHost) EXPECT_TRUE(own.GoesWithoutHost(kind, in, out));
    for (int round = 0; round < 4; ++round) {
      for (const LinkCall kind : kAll) {
        const bool is_on_host = (own.rank + round) % 2 == 0;
        const bool is_mixed = round == 3;
        own.Compare(kind, is_on_host ? host_in : in, is_on_host != is_mixed ? host_out : out, round);
      }
    }
    for (const LinkCall kind : kWithoutHost) EXPECT_TRUE(own.GoesWithoutHost(kind, in, out));
  });
}

TEST(DeviceLinksTest, BuffersOfARankMayLieOnSeveralGpus) {
  const LinkBody body = [](const LinkCalls& own) {
    const Room first(own.fake, 0);
    const Room second(own.fake, 1);
    const Room other(own.fake, 1);
    for (const LinkCall kind : kWithoutHost) EXPECT_TRUE(own.GoesWithoutHost(kind, second, other));
    for (int round = 0; round < kRounds; ++round) {
      for (const LinkCall kind : kAll) {
        const bool is_turned = (own.rank + round) % 2 == 0;
        own.Compare(kind, is_turned ? first : second, other, round);
        own.Compare(kind, is_turned ? second : other, first, round);
      }
    }
  };
  OnThreads(3, {.devices = 2}, body);
  OnRanks(
      3, [](int) { return FakeOptions{.devices = 2}; }, body);
}

// What comes to the address of freed memory is another allocation, of which peers read nothing that was there.
TEST(DeviceLinksTest, WhatComesToTheAddressOfFreedMemoryIsKnownAnew) {
  OnOneGpuEach(2, [](const LinkCalls& own) {
    const Room out(own.fake, 0);
    std::set<const std::byte*> addresses;
    int again = 0;
    for (int round = 0; round < 4; ++round) {
      const Room in(own.fake, 0);
      again += addresses.insert(in.data()).second ? 0 : 1;
      for (const LinkCall kind : {LinkCall::kMessage, LinkCall::kBroadcast}) own.Compare(kind, in, out, round);
      EXPECT_TRUE(own.GoesWithoutHost(LinkCall::kMessage, in, out));
      own.Compare(LinkCall::kMessage, in, out, round + 100);
      annulus_barrier(own.comm);
    }
    // A sanitizer gives no address again so soon.
    EXPECT_TRUE(again > 0 || kSanitized);
  });
}

}  // namespace
}  // namespace annulus
