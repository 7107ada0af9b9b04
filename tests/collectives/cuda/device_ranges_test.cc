// DeviceRanges: what is known of where memory of GPUs has been.
#include "collectives/cuda/places/device_ranges.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace annulus {
namespace {

constexpr size_t kPage = 4096;

bool IsThere(const void*) { return true; }

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
  ranges.Add(10 * kPage, 2 * kPage, IsThere);
  EXPECT_FALSE(ranges.Has(At(10 * kPage - 1)));
  EXPECT_TRUE(ranges.Has(At(10 * kPage)));
  EXPECT_TRUE(ranges.Has(At(12 * kPage - 1)));
  EXPECT_FALSE(ranges.Has(At(12 * kPage)));
}

// Staging memory of calls in streams often lies between the memory of GPUs: the driver must not be asked about it.
TEST(DeviceRangesTest, WhatLiesBetweenRangesIsNoGpus) {
  DeviceRanges ranges;
  ranges.Add(10 * kPage, kPage, IsThere);
  ranges.Add(20 * kPage, kPage, IsThere);
  for (uintptr_t page = 11; page < 20; ++page) {
    EXPECT_TRUE(ranges.Span(At(page * kPage))) << page;
    EXPECT_FALSE(ranges.Has(At(page * kPage))) << page;
  }
  EXPECT_TRUE(ranges.Has(At(10 * kPage)));
  EXPECT_TRUE(ranges.Has(At(20 * kPage)));
}

TEST(DeviceRangesTest, RangesBesideAndAroundOthersAreFoundWhole) {
  DeviceRanges ranges;
  ranges.Add(10 * kPage, kPage, IsThere);
  ranges.Add(14 * kPage, kPage, IsThere);
  ranges.Add(12 * kPage, kPage, IsThere);
  EXPECT_FALSE(ranges.Has(At(11 * kPage)));
  ranges.Add(10 * kPage, 5 * kPage, IsThere);  // Around all of them.
  ranges.Add(15 * kPage, kPage, IsThere);      // Beside them.
  ranges.Add(9 * kPage, 2 * kPage, IsThere);   // Over their begin.
  ranges.Add(12 * kPage, kPage, IsThere);      // In them.
  for (uintptr_t page = 9; page < 16; ++page) EXPECT_TRUE(ranges.Has(At(page * kPage + 1))) << page;
  EXPECT_FALSE(ranges.Has(At(9 * kPage - 1)));
  EXPECT_FALSE(ranges.Has(At(16 * kPage)));
}

// Links take what is not known any more for freed, and the receiver's copy of it for a mistake of the peer's.
TEST(DeviceRangesTest, WhatIsThereIsNeverForgotten) {
  DeviceRanges ranges;
  constexpr uintptr_t kMany = 5 * 4096;
  size_t questions = 0;
  const auto is_there = [&](const void*) { return ++questions > 0; };
  for (uintptr_t i = 1; i <= kMany; ++i) ranges.Add(2 * i * kPage, kPage, is_there);
  for (uintptr_t i = 1; i <= kMany; ++i) ASSERT_TRUE(ranges.Has(At(2 * i * kPage))) << i;
  EXPECT_LT(questions, 2 * kMany) << "few for each";
}

TEST(DeviceRangesTest, OfTooManyThoseThatWereFreedAreForgotten) {
  DeviceRanges ranges;
  constexpr uintptr_t kMost = 4096;
  const auto is_there = [](const void* pointer) { return pointer == At(20 * kPage); };
  for (uintptr_t i = 1; i <= kMost; ++i) ranges.Add(2 * i * kPage, kPage, is_there);
  EXPECT_TRUE(ranges.Has(At(2 * kPage)));
  ranges.Add(2 * (kMost + 1) * kPage, kPage, is_there);
  EXPECT_FALSE(ranges.Has(At(2 * kPage)));
  EXPECT_TRUE(ranges.Has(At(20 * kPage)));
}

// Another thread has a buffer there while the driver is asked.
TEST(DeviceRangesTest, WhatIsAddedMeanwhileIsNotForgotten) {
  DeviceRanges ranges;
  constexpr uintptr_t kMost = 4096;
  const auto comes_back = [&](const void* pointer) {
    if (pointer == At(20 * kPage)) ranges.Add(20 * kPage, kPage, IsThere);
    return false;
  };
  for (uintptr_t i = 1; i <= kMost + 1; ++i) ranges.Add(2 * i * kPage, kPage, comes_back);
  EXPECT_FALSE(ranges.Has(At(2 * kPage)));
  EXPECT_TRUE(ranges.Has(At(20 * kPage)));
}

// The first allocation was freed, and a smaller one came there. Both are asked for by themselves.
TEST(DeviceRangesTest, AnAllocationWithinAFreedOneIsKnownByItself) {
  DeviceRanges ranges;
  constexpr uintptr_t kMost = 4096;
  const auto is_there = [](const void* pointer) { return pointer == At(12 * kPage); };
  ranges.Add(10 * kPage, 5 * kPage, is_there);
  ranges.Add(12 * kPage, kPage, is_there);
  for (uintptr_t page = 10; page < 15; ++page) EXPECT_TRUE(ranges.Has(At(page * kPage))) << page;
  for (uintptr_t i = 10; i <= kMost + 10; ++i) ranges.Add(2 * i * kPage, kPage, is_there);
  for (uintptr_t page = 10; page < 15; ++page) EXPECT_EQ(ranges.Has(At(page * kPage)), page == 12) << page;
}

TEST(DeviceRangesTest, FreedIsWhatTheCpuCannotRead) {
  void* const mapped = mmap(nullptr, 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  DeviceRanges ranges;
  EXPECT_FALSE(ranges.IsFreed(mapped));
  ranges.Add(reinterpret_cast<uintptr_t>(mapped), kPage, IsThere);
  EXPECT_FALSE(ranges.IsFreed(mapped)) << "something has come there";
  ASSERT_EQ(mprotect(mapped, 2 * kPage, PROT_NONE), 0);
  EXPECT_TRUE(ranges.IsFreed(mapped));
  EXPECT_FALSE(ranges.IsFreed(static_cast<const std::byte*>(mapped) + kPage)) << "no GPU had it";
  munmap(mapped, 2 * kPage);
}

}  // namespace
}  // namespace annulus
