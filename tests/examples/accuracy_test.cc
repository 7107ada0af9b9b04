// Training on all real images reaches the accuracy that the README promises, with any number of ranks.
#include <gtest/gtest.h>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

class AccuracyTest : public testing::TestWithParam<int> {};

TEST_P(AccuracyTest, TenEpochsReachTheTarget) {
  if (GetParam() != 2 && Rounds(1, 3) == 1) GTEST_SKIP() << "./test soak runs it";
  LauncherRun::Setup setup;
  setup.arguments = {
      "-np",  std::to_string(GetParam()), "docs/examples/fashion_mnist/train", "--epochs", "10", "--target-accuracy",
      "0.872"};
  setup.run_time = 600 * kSecond;
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_NE(run.out().find("epoch 10/10: loss "), std::string::npos) << run.out();
}

INSTANTIATE_TEST_SUITE_P(Ranks, AccuracyTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace annulus
