// The training example's network: its gradients are those of its loss, whole or in parts.
#include "docs/examples/fashion_mnist/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace fashion {
namespace {

Dataset RandomImages(size_t count) {
  std::mt19937 random(1);
  Dataset images;
  for (size_t i = 0; i < count * kPixels; ++i) images.pixels.push_back(static_cast<uint8_t>(random()));
  for (size_t i = 0; i < count; ++i) images.labels.push_back(static_cast<uint8_t>(random() % kClasses));
  return images;
}

std::vector<uint32_t> FirstImages(size_t count) {
  std::vector<uint32_t> indices(count);
  std::iota(indices.begin(), indices.end(), 0u);
  return indices;
}

class NetworkTest : public testing::Test {
 protected:
  NetworkTest() : images_(RandomImages(8)), batch_(FirstImages(8)) { network_.Initialise(5); }

  float Loss() {
    network_.Forward(images_, batch_);
    return network_.gradients()[kParameters];
  }

  Dataset images_;
  std::vector<uint32_t> batch_;
  Network network_;
};

TEST_F(NetworkTest, GradientsAreTheSlopesOfTheLoss) {
  Loss();
  network_.BackwardOutput();
  network_.BackwardHidden(0, kHidden);
  const std::vector<float> gradients = network_.gradients();
  constexpr float kStep = 1e-2f;
  std::mt19937 random(2);
  const size_t biases = kHiddenWeights + kHidden + kOutputWeights;
  std::vector<size_t> places = {0,      kHiddenWeights - 1, kHiddenWeights, kHiddenWeights + kHidden,
                                biases, kParameters - 1};
  for (int i = 0; i < 30; ++i) places.push_back(random() % kParameters);
  for (const size_t place : places) {
    float& parameter = network_.parameters()[place];
    const float at = parameter;
    parameter = at + kStep;
    const float above = Loss();
    parameter = at - kStep;
    const float below = Loss();
    parameter = at;
    const float slope = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradients[place], slope, 2e-3 + 0.05 * std::fabs(slope)) << place;
  }
}

TEST_F(NetworkTest, PartsOfTheHiddenLayerAreTheWhole) {
  Loss();
  network_.BackwardOutput();
  network_.BackwardHidden(0, kHidden);
  const std::vector<float> whole = network_.gradients();
  std::fill_n(network_.gradients().begin(), kHiddenWeights, 0.0f);
  network_.BackwardHidden(kHidden / 2, kHidden / 2);
  network_.BackwardHidden(0, kHidden / 2);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(network_.gradients()[i], whole[i], 1e-5) << i;
}

TEST_F(NetworkTest, BatchesAverageToTheirUnion) {
  // What lets ranks share a batch: the mean of the halves' gradients is the gradient of the whole.
  Loss();
  network_.BackwardOutput();
  const std::vector<float> whole = network_.gradients();
  std::vector<float> halves(whole.size(), 0.0f);
  for (const size_t first : {0, 4}) {
    network_.Forward(images_, std::span(batch_).subspan(first, 4));
    network_.BackwardOutput();
    for (size_t i = kHiddenWeights; i < whole.size(); ++i) halves[i] += network_.gradients()[i] / 2;
  }
  for (size_t i = kHiddenWeights; i < whole.size(); ++i) ASSERT_NEAR(halves[i], whole[i], 1e-5) << i;
}

}  // namespace
}  // namespace fashion
