// The perceptron's arithmetic, on Eigen's matrices.
//
// Threads: see network.h.
#include "docs/examples/fashion_mnist/network.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace fashion {
namespace {

// Mean and standard deviation of the training set's pixels, as fractions of white.
constexpr float kPixelMean = 0.2860f;
constexpr float kPixelDeviation = 0.3530f;
// Keeps the logarithm finite when a probability underflows.
constexpr float kLeastProbability = 1e-30f;

void FillUniform(std::mt19937_64& random, float limit, std::span<float> values) {
  // Written out, so that every standard library gives the same numbers.
  for (float& value : values) value = limit * (static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f);
}

}  // namespace

void Network::Initialise(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::fill(parameters_.begin(), parameters_.end(), 0.0f);
  const std::span<float> all(parameters_);
  FillUniform(random, std::sqrt(6.0f / kPixels), all.first(kHiddenWeights));
  FillUniform(random, std::sqrt(6.0f / kHidden), all.subspan(kHiddenWeights + kHidden, kOutputWeights));
}

void Network::Forward(const Dataset& images, std::span<const uint32_t> indices) {
  const auto batch = static_cast<Eigen::Index>(indices.size());
  inputs_.resize(batch, kPixels);
  labels_.resize(indices.size());
  for (Eigen::Index i = 0; i < batch; ++i) {
    const size_t image = indices[static_cast<size_t>(i)];
    const Eigen::Map<const Eigen::Matrix<uint8_t, 1, kPixels>> pixels(&images.pixels[image * kPixels]);
    inputs_.row(i) = (pixels.cast<float>().array() * (1 / 255.0f) - kPixelMean) * (1 / kPixelDeviation);
    labels_[static_cast<size_t>(i)] = images.labels[image];
  }
  hidden_.noalias() = inputs_ * HiddenWeights(parameters_).transpose();
  hidden_ = (hidden_.rowwise() + HiddenBiases(parameters_)).cwiseMax(0.0f);
  outputs_.noalias() = hidden_ * OutputWeights(parameters_).transpose();
  outputs_.rowwise() += OutputBiases(parameters_);

  double loss = 0;
  for (Eigen::Index i = 0; i < batch; ++i) {
    auto row = outputs_.row(i).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
    loss -= std::log(std::max(row(labels_[static_cast<size_t>(i)]), kLeastProbability));
  }
  gradients_[kParameters] = static_cast<float>(loss / static_cast<double>(batch));
}

void Network::BackwardOutput() {
  // The derivative of softmax and cross entropy together, averaged over the batch.
  for (Eigen::Index i = 0; i < outputs_.rows(); ++i) outputs_(i, labels_[static_cast<size_t>(i)]) -= 1;
  outputs_ /= static_cast<float>(outputs_.rows());
  OutputWeights(gradients_).noalias() = outputs_.transpose() * hidden_;
  OutputBiases(gradients_) = outputs_.colwise().sum();
  hidden_errors_.noalias() = outputs_ * OutputWeights(parameters_);
  hidden_errors_.array() *= (hidden_.array() > 0.0f).cast<float>();
  HiddenBiases(gradients_) = hidden_errors_.colwise().sum();
}

void Network::BackwardHidden(int first, int units) {
  HiddenWeights(gradients_).middleRows(first, units).noalias() =
      hidden_errors_.middleCols(first, units).transpose() * inputs_;
}

int Network::CountCorrect() const {
  int correct = 0;
  for (Eigen::Index i = 0; i < outputs_.rows(); ++i) {
    Eigen::Index best = 0;
    outputs_.row(i).maxCoeff(&best);
    correct += best == labels_[static_cast<size_t>(i)];
  }
  return correct;
}

}  // namespace fashion
