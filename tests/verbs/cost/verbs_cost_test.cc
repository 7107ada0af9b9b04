// What each slice over verbs costs, where it can be counted: requests, doorbells, completions, memory, system calls.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdio>
#include <optional>
#include <string>

#include "tests/transport/allocation_counter.h"
#include "tests/verbs/cost/slice_costs.h"
#include "tests/verbs/cost/straight_nic.h"
#include "tests/verbs/cost/system_calls.h"

namespace annulus {
namespace {

constexpr uint64_t kSlices = 5000;

class VerbsCostTest : public ::testing::TestWithParam<SlicePattern> {};

// A message takes one request and one receive, and one completion of each at most. Slots and receives are returned by
// the slices that go the other way, or by messages of their own, of which one returns half of the slots at least.
TEST_P(VerbsCostTest, RequestsAndDoorbellsStayWithinTheirBounds) {
  const SlicePattern& pattern = GetParam();
  const auto link = SliceLink::Open(pattern);
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(link->Run(kSlices));
  const StraightCounts before = CountsOfStraightNic();
  ASSERT_TRUE(link->Run(kSlices));
  const StraightCounts& now = CountsOfStraightNic();
  const auto per_slice = [&](uint64_t StraightCounts::*count) {
    return static_cast<double>(now.*count - before.*count) / static_cast<double>(link->SlicesOf(kSlices));
  };
  const double most = 1.0 + 2.0 / SliceLink::kSlots + 0.01;
  const double reads = pattern.reads ? 1.0 : 0.0;
  EXPECT_GE(per_slice(&StraightCounts::send_requests), 1.0 + reads);
  EXPECT_LE(per_slice(&StraightCounts::send_requests), most + reads);
  EXPECT_LE(per_slice(&StraightCounts::recv_requests), most);
  EXPECT_LE(per_slice(&StraightCounts::recv_completions), most);
  EXPECT_LE(per_slice(&StraightCounts::send_completions), 1.0 + reads);
  EXPECT_LE(per_slice(&StraightCounts::carried_bytes), pattern.bytes + (64 + 16 * reads) * most);
  // What a round of an end finds together goes to the device together, on each rail: what its window lets through,
  // READs for themselves, and a message of credits.
  const double rounds = (std::string(pattern.ports).empty() ? 1.0 : 2.0) / pattern.window;
  EXPECT_LE(per_slice(&StraightCounts::send_doorbells), rounds * (1 + reads) + 2.0 / SliceLink::kSlots + 0.01);
  EXPECT_LE(per_slice(&StraightCounts::recv_doorbells), rounds + 2.0 / SliceLink::kSlots + 0.01);
  std::printf(
      "per slice: %.3f send requests, %.3f send doorbells, %.3f receive doorbells, %.3f completions, %.2f polls\n",
      per_slice(&StraightCounts::send_requests), per_slice(&StraightCounts::send_doorbells),
      per_slice(&StraightCounts::recv_doorbells),
      per_slice(&StraightCounts::send_completions) + per_slice(&StraightCounts::recv_completions),
      per_slice(&StraightCounts::polls));
}

// A slice of 64 KiB goes to the device alone, and smaller ones go until they are as much. What is taken in between is
// told by the slices themselves: no more messages of credits than with small ones.
TEST(VerbsHeavyTest, SlicesGoToTheDeviceBy64KiB) {
  constexpr uint64_t kHeavySlices = 500;
  const struct {
    uint32_t bytes;
    double doorbells;
  } cases[] = {{16 * 1024, 0.25}, {32 * 1024, 0.5}, {64 * 1024, 1.0}};
  for (const auto& [bytes, doorbells] : cases) {
    SCOPED_TRACE(bytes);
    const auto link = SliceLink::Open({.name = "heavy", .bytes = bytes, .both_ways = true});
    ASSERT_NE(link, nullptr);
    const StraightCounts before = CountsOfStraightNic();
    ASSERT_TRUE(link->Run(kHeavySlices));
    const StraightCounts& now = CountsOfStraightNic();
    const auto slices = static_cast<double>(link->SlicesOf(kHeavySlices));
    const double rung = static_cast<double>(now.send_doorbells - before.send_doorbells) / slices;
    EXPECT_GE(rung, doorbells);
    EXPECT_LE(rung, doorbells + 2.0 / SliceLink::kSlots + 0.01);
    const double requests = static_cast<double>(now.send_requests - before.send_requests) / slices;
    EXPECT_LE(requests, 1.0 + 2.0 / SliceLink::kSlots + 0.01);
    std::printf("%u bytes, per slice: %.3f send requests, %.3f send doorbells\n", bytes, requests, rung);
  }
}

TEST_P(VerbsCostTest, NothingIsAllocatedAndNoSystemCallIsMade) {
  const auto link = SliceLink::Open(GetParam());
  ASSERT_NE(link, nullptr);
  bool ran = link->Run(kSlices);
  size_t allocations = 0;
  const auto calls = CountSystemCalls([&](const auto& begin, const auto& end) {
    const size_t before = AllocationsOfThisThread();
    begin();
    ran = ran && link->Run(kSlices);
    end();
    allocations = AllocationsOfThisThread() - before;
  });
  ASSERT_TRUE(ran);
  EXPECT_EQ(allocations, 0u);
  if (!calls) GTEST_SKIP() << "system calls cannot be counted here";
  EXPECT_EQ(calls->count, 0u) << "numbers " << calls->numbers;
}

INSTANTIATE_TEST_SUITE_P(Patterns, VerbsCostTest, ::testing::ValuesIn(kSlicePatterns), [](const auto& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return c == ' ' || c == ','; });
  return name;
});

// The counting itself works: a test of zero would pass without it, too.
TEST(SystemCallsTest, EachCallCounts) {
  const auto calls = CountSystemCalls([](const auto& begin, const auto& end) {
    std::fflush(nullptr);
    begin();
    for (int i = 0; i < 3; ++i) sched_yield();
    end();
    sched_yield();
  });
  if (!calls) GTEST_SKIP() << "system calls cannot be counted here";
  EXPECT_EQ(calls->count, 3u);
}

}  // namespace
}  // namespace annulus
