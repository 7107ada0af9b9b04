// The rule by which connections without proof make room.
#include "transport/security/crowd.h"

#include <gtest/gtest.h>

#include <vector>

namespace annulus {
namespace {

size_t Choose(const std::vector<CrowdMember>& members) { return ChooseToDrop(members); }

TEST(CrowdTest, WhoSentNothingGoesFirst) { EXPECT_EQ(Choose({{true, 9}, {true, 1}, {false, 1}, {true, 9}}), 2u); }

TEST(CrowdTest, AmongTheSilentTheBusiestHostGoesFirst) {
  EXPECT_EQ(Choose({{false, 1}, {true, 60}, {false, 3}, {false, 2}}), 2u);
}

TEST(CrowdTest, WhenAllHaveSpokenTheBusiestHostGoesFirst) { EXPECT_EQ(Choose({{true, 1}, {true, 2}, {true, 2}}), 1u); }

TEST(CrowdTest, AmongEqualsTheOldestGoes) { EXPECT_EQ(Choose({{false, 5}, {false, 5}, {false, 5}}), 0u); }

TEST(CrowdTest, OneMemberIsChosen) { EXPECT_EQ(Choose({{true, 1}}), 0u); }

}  // namespace
}  // namespace annulus
