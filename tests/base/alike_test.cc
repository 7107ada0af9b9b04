// Memory whose elements are all the same is told from memory in which one differs.
#include "tests/base/alike.h"

#include <gtest/gtest.h>

#include <vector>

namespace annulus {
namespace {

TEST(AlikeTest, WhatWasFilledIsAlikeUntilAnElementChanges) {
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> filled(count + 1, 7);
    FillWith(filled.data(), count, 2.5F);
    EXPECT_TRUE(AllAre(filled.data(), count, 2.5F)) << count;
    EXPECT_EQ(filled[count], 7) << "nothing else was written";
    for (size_t i = 0; i < count; ++i) {
      filled[i] = 3;
      EXPECT_FALSE(AllAre(filled.data(), count, 2.5F)) << i << " of " << count;
      filled[i] = 2.5F;
    }
    EXPECT_TRUE(count == 0 || !AllAre(filled.data(), count, 2.0F)) << count;
  }
}

}  // namespace
}  // namespace annulus
