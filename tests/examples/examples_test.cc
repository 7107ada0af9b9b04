// The example programs as users run them: the minimal one, and training on the real images.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/launcher/launcher_run.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr char kTrain[] = "docs/examples/fashion_mnist/train";
// Steps of 64 images in an epoch. A sanitizer's build takes fifteen times as long.
constexpr int kSteps = kSanitized ? 16 : 62;
std::string Small() {
  return "--train-images " + std::to_string(64 * kSteps) + " --test-images 1000 --global-batch 64";
}
// A step adds the same numbers in another order when the ranks are other ones. Each rounding is 6e-8 of the value; 124
// steps let it grow to about 1e-5, far below this and far below what one wrong gradient does.
constexpr double kLossTolerance = 1e-3;

std::string Temporary(const std::string& name) { return testing::TempDir() + "/" + name; }

struct Losses {
  std::vector<std::string> text;
  std::vector<double> values;
};

Losses ReadLosses(const std::string& path) {
  Losses losses;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "step,epoch,loss");
  while (std::getline(file, line)) {
    losses.text.push_back(line);
    losses.values.push_back(std::stod(line.substr(line.rfind(',') + 1)));
  }
  return losses;
}

struct Result {
  int status;
  std::string out;
  std::string err;
};

Result Train(int nranks, const std::string& arguments) {
  LauncherRun::Setup setup;
  setup.arguments = {"-np", std::to_string(nranks), kTrain};
  std::istringstream words(arguments);
  for (std::string word; words >> word;) setup.arguments.push_back(word);
  LauncherRun run(setup);
  const int status = run.Finish();
  return {status, run.out(), run.err()};
}

Losses TrainForLosses(int nranks, const std::string& name, const std::string& arguments) {
  const std::string path = Temporary(name);
  const Result result = Train(nranks, Small() + " " + arguments + " --loss-csv " + path);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  return ReadLosses(path);
}

TEST(AllreduceExample, EveryRankHasTheSums) {
  LauncherRun run({.arguments = {"-np", "3", "docs/examples/allreduce_example"}});
  EXPECT_EQ(run.Finish(), 0) << run.err();
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<std::string> lines = run.LinesOf(rank);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0], "rank " + std::to_string(rank) + " of 3: all 1000000 sums are right, the first is 6");
  }
}

TEST(Training, FourRanksFollowOneRanksLossCurve) {
  const Losses one = TrainForLosses(1, "one.csv", "--epochs 2");
  const Losses four = TrainForLosses(4, "four.csv", "--epochs 2");
  ASSERT_EQ(one.values.size(), 2u * kSteps);
  ASSERT_EQ(four.values.size(), one.values.size());
  for (size_t step = 0; step < one.values.size(); ++step) {
    ASSERT_NEAR(four.values[step], one.values[step], kLossTolerance * one.values[step]) << "step " << step;
  }
  EXPECT_LT(one.values.back(), one.values.front() * (kSanitized ? 0.8 : 0.5))
      << "nothing was learned, so nothing was compared";
}

TEST(Training, AResumedRunGoesOnAsIfNothingHadHappened) {
  const std::string checkpoint = " --checkpoint " + Temporary("resume.checkpoint");
  const Losses whole = TrainForLosses(2, "whole.csv", "--epochs 2");
  const Losses first = TrainForLosses(2, "first.csv", "--epochs 2 --stop-after 1" + checkpoint);
  const Losses second = TrainForLosses(2, "second.csv", "--epochs 2 --resume" + checkpoint);
  std::vector<std::string> joined = first.text;
  joined.insert(joined.end(), second.text.begin(), second.text.end());
  // To the last digit: the same ranks add in the same order.
  EXPECT_EQ(joined, whole.text);
}

TEST(Training, LearnsToTellClothesApart) {
  if (kSanitized) GTEST_SKIP() << "the tests above train too";
  const Result result = Train(2, Small() + " --epochs 3 --target-accuracy 0.7");
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("epoch 3/3: loss "), std::string::npos) << result.out;
}

TEST(Training, ATargetThatIsMissedFails) {
  const Result result =
      Train(2, "--train-images 640 --test-images 100 --global-batch 64 --epochs 1 --target-accuracy 0.99");
  EXPECT_EQ(result.status, 1) << result.out << result.err;
  EXPECT_NE(result.err.find("is below 0.9900"), std::string::npos) << result.err;
}

TEST(Training, MissingImagesNameThePackageThatHasThem) {
  const Result result = Train(2, "--data /no/such/folder");
  EXPECT_EQ(result.status, 1) << result.out;
  EXPECT_NE(result.err.find("/no/such/folder/train-images-idx3-ubyte.gz: No such file"), std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("apt-get install dataset-fashion-mnist"), std::string::npos) << result.err;
}

TEST(Training, DamagedImagesAreRefused) {
  const std::string folder = testing::TempDir();
  std::ofstream(folder + "/train-images-idx3-ubyte.gz") << "not an image";
  const Result result = Train(1, "--data " + folder);
  EXPECT_EQ(result.status, 1) << result.out;
  EXPECT_NE(result.err.find("is damaged or no Fashion-MNIST file"), std::string::npos) << result.err;
}

TEST(Training, SettingsThatDoNotFitEndAllRanksWithOneReason) {
  EXPECT_NE(Train(3, "--train-images 640 --global-batch 64").err.find("cannot be shared by 3 ranks evenly"),
            std::string::npos);
  EXPECT_NE(Train(1, "--stop-after all").err.find("--stop-after: Value all not in range 0 to 10000"),
            std::string::npos);
  EXPECT_NE(Train(2, "--train-images 10").err.find("is more than the 10 images"), std::string::npos);
  EXPECT_NE(Train(2, "--train-images 640 --resume").err.find("--resume needs --checkpoint"), std::string::npos);
}

}  // namespace
}  // namespace annulus
