// Masks of CPUs of any length, and the CPUs that the system allows.
#include "base/cpus.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace annulus {
namespace {

bool Holds(const CpuMask& mask, size_t cpu) {
  return CPU_ISSET_S(cpu, mask.size() * sizeof(cpu_set_t), mask.data()) != 0;
}

TEST(MaskOf, IsAsLongAsItsLastCpuNeeds) {
  EXPECT_TRUE(MaskOf({}).empty());
  EXPECT_EQ(MaskOf({1023, 0}).size(), 1u);
  const CpuMask mask = MaskOf({1024, 3, 5000});
  ASSERT_EQ(mask.size(), 5u);
  EXPECT_EQ(CPU_COUNT_S(mask.size() * sizeof(cpu_set_t), mask.data()), 3);
  for (const size_t cpu : {3, 1024, 5000}) EXPECT_TRUE(Holds(mask, cpu)) << cpu;
}

TEST(AllowedCpus, AreThoseOfTheMask) {
  const std::vector<int> before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  EXPECT_TRUE(std::ranges::is_sorted(before));
  const CpuMask one = MaskOf({before.back()});
  ASSERT_EQ(sched_setaffinity(0, one.size() * sizeof(cpu_set_t), one.data()), 0);
  EXPECT_EQ(AllowedCpus(), std::vector<int>{before.back()});
  const CpuMask all = MaskOf(before);
  ASSERT_EQ(sched_setaffinity(0, all.size() * sizeof(cpu_set_t), all.data()), 0);
  EXPECT_EQ(AllowedCpus(), before);
}

TEST(AllowedCpus, MaskThatIsTooShortGrows) { EXPECT_EQ(AllowedCpus(0), AllowedCpus()); }

TEST(AllowedCpus, LongerMasksThanTheSystemHasAreFine) { EXPECT_EQ(AllowedCpus(16), AllowedCpus()); }

}  // namespace
}  // namespace annulus
