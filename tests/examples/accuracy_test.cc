// Training on all real images reaches the accuracy that the README promises, with any number of ranks.
#include <gtest/gtest.h>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

class AccuracyTest : public testing::TestWithParam<int> {};

// Five epochs do too. The README's ten run in ./test soak.
TEST_P(AccuracyTest, TrainingReachesTheTarget) {
  if (GetParam() != 2 && Rounds(1, 3) == 1) GTEST_SKIP() << "./test soak runs it";
  const std::string epochs = std::to_string(Rounds(5, 10));
  LauncherRun::Setup setup;
  setup.arguments = {
      "-np",  std::to_string(GetParam()), "docs/examples/fashion_mnist/train", "--epochs", epochs, "--target-accuracy",
      "0.872"};
  setup.run_time = 600 * kSecond;
  LauncherRun run(setup);
  EXPECT_EQ(run.Finish(), 0) << run.out() << run.err();
  EXPECT_NE(run.out().find("epoch " + epochs + "/" + epochs + ": loss "), std::string::npos) << run.out();
}

INSTANTIATE_TEST_SUITE_P(Ranks, AccuracyTest, testing::Values(1, 2, 4));

}  // namespace
}  // namespace annulus
