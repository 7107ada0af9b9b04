// One event passes in each interval; the others are counted.
#include "base/rate_limit.h"

#include <gtest/gtest.h>

namespace annulus {
namespace {

TEST(RateLimit, TheFirstPassesAndThenOneInEachInterval) {
  RateLimit limit(10 * kSecond);
  uint64_t missed = 77;
  EXPECT_TRUE(limit.Pass(5 * kSecond, &missed));
  EXPECT_EQ(missed, 0u);
  missed = 77;
  EXPECT_FALSE(limit.Pass(5 * kSecond, &missed));
  EXPECT_FALSE(limit.Pass(15 * kSecond - 1, &missed));
  EXPECT_EQ(missed, 77u);
  EXPECT_TRUE(limit.Pass(15 * kSecond, &missed));
  EXPECT_EQ(missed, 2u);
  EXPECT_FALSE(limit.Pass(24 * kSecond, &missed));  // From the last that passed.
  EXPECT_TRUE(limit.Pass(40 * kSecond, &missed));
  EXPECT_EQ(missed, 1u);
}

}  // namespace
}  // namespace annulus
