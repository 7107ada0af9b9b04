// DeviceRanges: what is known of where memory of GPUs has been.
#include "collectives/cuda/places/device_ranges.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace annulus {
namespace {

constexpr size_t kPage = 4096;

const void* At(uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(DeviceRangesTest, NothingIsKnownOfAnEmptyProcess) {
  const DeviceRanges ranges;
  const int on_stack = 0;
  for (const void* pointer : {static_cast<const void*>(nullptr), static_cast<const void*>(&on_stack), At(kPage)}) {
    EXPECT_FALSE(ranges.Span(pointer));
    EXPECT_FALSE(ranges.Has(pointer));
  }
}

TEST(DeviceRangesTest, ARangeHasItsBytesAndNoOther) {
  DeviceRanges ranges;
  ranges.Add(10 * kPage, 2 * kPage);
  EXPECT_FALSE(ranges.Has(At(10 * kPage - 1)));
  EXPECT_TRUE(ranges.Has(At(10 * kPage)));
  EXPECT_TRUE(ranges.Has(At(12 * kPage - 1)));
  EXPECT_FALSE(ranges.Has(At(12 * kPage)));
}

// Staging memory of calls in streams often lies between the memory of GPUs: the driver must not be asked about it.
TEST(DeviceRangesTest, WhatLiesBetweenRangesIsNoGpus) {
  DeviceRanges ranges;
  ranges.Add(10 * kPage, kPage);
  ranges.Add(20 * kPage, kPage);
  for (uintptr_t page = 11; page < 20; ++page) {
    EXPECT_TRUE(ranges.Span(At(page * kPage))) << page;
    EXPECT_FALSE(ranges.Has(At(page * kPage))) << page;
  }
  EXPECT_TRUE(ranges.Has(At(10 * kPage)));
  EXPECT_TRUE(ranges.Has(At(20 * kPage)));
}

TEST(DeviceRangesTest, RangesGrowTogetherAndAreFoundWhole) {
  DeviceRanges ranges;
  ranges.Add(10 * kPage, kPage);
  ranges.Add(14 * kPage, kPage);
  ranges.Add(12 * kPage, kPage);
  EXPECT_FALSE(ranges.Has(At(11 * kPage)));
  ranges.Add(10 * kPage, 5 * kPage);  // Around all of them.
  ranges.Add(15 * kPage, kPage);      // Beside them.
  ranges.Add(9 * kPage, 2 * kPage);   // Over their begin.
  ranges.Add(12 * kPage, kPage);      // In them.
  for (uintptr_t page = 9; page < 16; ++page) EXPECT_TRUE(ranges.Has(At(page * kPage + 1))) << page;
  EXPECT_FALSE(ranges.Has(At(9 * kPage - 1)));
  EXPECT_FALSE(ranges.Has(At(16 * kPage)));
}

TEST(DeviceRangesTest, TooManyAreForgotten) {
  DeviceRanges ranges;
  constexpr uintptr_t kMost = 4096;
  for (uintptr_t i = 1; i <= kMost; ++i) ranges.Add(2 * i * kPage, kPage);
  EXPECT_TRUE(ranges.Has(At(2 * kPage)));
  ranges.Add(2 * (kMost + 1) * kPage, kPage);
  EXPECT_FALSE(ranges.Has(At(2 * kPage)));
  EXPECT_TRUE(ranges.Has(At(2 * (kMost + 1) * kPage)));
}

TEST(DeviceRangesTest, FreedIsWhatTheCpuCannotRead) {
  void* const mapped = mmap(nullptr, 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  DeviceRanges ranges;
  EXPECT_FALSE(ranges.IsFreed(mapped));
  ranges.Add(reinterpret_cast<uintptr_t>(mapped), kPage);
  EXPECT_FALSE(ranges.IsFreed(mapped)) << "something has come there";
  ASSERT_EQ(mprotect(mapped, 2 * kPage, PROT_NONE), 0);
  EXPECT_TRUE(ranges.IsFreed(mapped));
  EXPECT_FALSE(ranges.IsFreed(static_cast<const std::byte*>(mapped) + kPage)) << "no GPU had it";
  munmap(mapped, 2 * kPage);
}

}  // namespace
}  // namespace annulus
