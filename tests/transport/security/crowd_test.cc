// The rule by which connections without proof make room.
#include "transport/security/crowd.h"

#include <gtest/gtest.h>

#include <vector>

namespace annulus {
namespace {

using Stage = CrowdMember::Stage;

// Whatever is drawn.
size_t Choose(const std::vector<CrowdMember>& members) {
  const size_t chosen = ChooseToDrop(members, 0);
  for (size_t draw = 1; draw < 100; ++draw) EXPECT_EQ(ChooseToDrop(members, draw), chosen);
  return chosen;
}

TEST(CrowdTest, WhoSentNothingGoesFirst) {
  EXPECT_EQ(Choose({{Stage::kGreeted, 9}, {Stage::kSpoke, 9}, {Stage::kSilent, 1}, {Stage::kSpoke, 9}}), 2u);
}

TEST(CrowdTest, ThenWhoSentNoHello) {
  EXPECT_EQ(Choose({{Stage::kGreeted, 9}, {Stage::kSpoke, 1}, {Stage::kGreeted, 1}}), 1u);
}

TEST(CrowdTest, AmongTheSilentTheBusiestHostGoesFirst) {
  EXPECT_EQ(Choose({{Stage::kSilent, 1}, {Stage::kSpoke, 60}, {Stage::kSilent, 3}, {Stage::kSilent, 2}}), 2u);
}

TEST(CrowdTest, AmongEqualsTheDrawDecides) {
  const std::vector<CrowdMember> members = {
      {Stage::kGreeted, 2}, {Stage::kGreeted, 1}, {Stage::kGreeted, 2}, {Stage::kGreeted, 2}};
  EXPECT_EQ(ChooseToDrop(members, 0), 0u);
  EXPECT_EQ(ChooseToDrop(members, 1), 2u);
  EXPECT_EQ(ChooseToDrop(members, 2), 3u);
  EXPECT_EQ(ChooseToDrop(members, 3), 0u);
}

TEST(CrowdTest, OneMemberIsChosen) { EXPECT_EQ(Choose({{Stage::kGreeted, 1}}), 0u); }

}  // namespace
}  // namespace annulus
