// The main function of tests that are a round as a whole: once in every run, SOAK_REPEATS times under ./test soak.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"
#include "tests/soak/rounds.h"

int main(int argc, char** argv) {
  const char* const repeats = std::getenv("SOAK_REPEATS");
  ANNULUS_CHECK(repeats != nullptr && std::atoi(repeats) > 0);  // An `env` of the target, beside its tag.
  GTEST_FLAG_SET(repeat, static_cast<int>(annulus::Rounds(1, static_cast<uint64_t>(std::atoi(repeats)))));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
