// The number of rounds follows the suite that runs.
#include "tests/soak/rounds.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace annulus {
namespace {

TEST(RoundsTest, AreAllInASoakAndAFixedShareElsewhere) {
  const char* const soak = std::getenv("TEST_SOAK");
  EXPECT_EQ(Rounds(3, 1000), soak == nullptr ? 3u : 1000u);
  setenv("TEST_SOAK", "1", 1);
  EXPECT_EQ(Rounds(3, 1000), 1000u);
  unsetenv("TEST_SOAK");
  EXPECT_EQ(Rounds(3, 1000), 3u);
  EXPECT_EQ(Rounds(500, 1000), kSanitized ? 50u : 500u);
  EXPECT_EQ(Rounds(40, 1000), kSanitized ? 5u : 40u);
}

}  // namespace
}  // namespace annulus
