// Network: a perceptron with 784 inputs, 256 hidden units (ReLU) and 10 outputs (softmax, cross entropy), in float32.
//
// Parameters and gradients each lie in one array, in the order
//   hidden weights | hidden biases | output weights | output biases | loss (gradients only)
// The backward pass goes from the end of that array to its start: whatever it has finished can be summed over the ranks
// while it goes on. The batch's loss rides along behind the gradients, so averaging the gradients averages it too.
//
// Threads: one thread at a time; finished parts of gradients() may be read and replaced by others meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <eigen3/Eigen/Dense>
#include <span>
#include <vector>

#include "docs/examples/fashion_mnist/dataset.h"

namespace fashion {

inline constexpr int kHidden = 256;
inline constexpr size_t kHiddenWeights = size_t{kHidden} * kPixels;
inline constexpr size_t kOutputWeights = size_t{kClasses} * kHidden;
inline constexpr size_t kParameters = kHiddenWeights + kHidden + kOutputWeights + kClasses;

class Network {
 public:
  Network() : parameters_(kParameters), gradients_(kParameters + 1) {}

  // Draws the starting weights (He's uniform rule) from `seed`; biases become 0.
  void Initialise(uint64_t seed);

  std::vector<float>& parameters() { return parameters_; }
  std::vector<float>& gradients() { return gradients_; }

  // Takes images[indices[i]] as the batch, and computes its outputs, and its mean loss as the last gradient.
  void Forward(const Dataset& images, std::span<const uint32_t> indices);

  // Everything behind the hidden weights: from gradients()[kHiddenWeights] to the end.
  void BackwardOutput();

  // The weights of hidden units [first, first + units): gradients()[first * kPixels], units * kPixels of them.
  void BackwardHidden(int first, int units);

  // How many images of the last Forward were classified rightly.
  int CountCorrect() const;

 private:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using MatrixView = Eigen::Map<Matrix>;
  using VectorView = Eigen::Map<Eigen::RowVectorXf>;

  static MatrixView HiddenWeights(std::vector<float>& of) { return {of.data(), kHidden, kPixels}; }
  static VectorView HiddenBiases(std::vector<float>& of) { return {of.data() + kHiddenWeights, kHidden}; }
  static MatrixView OutputWeights(std::vector<float>& of) {
    return {of.data() + kHiddenWeights + kHidden, kClasses, kHidden};
  }
  static VectorView OutputBiases(std::vector<float>& of) {
    return {of.data() + kHiddenWeights + kHidden + kOutputWeights, kClasses};
  }

  std::vector<float> parameters_;
  std::vector<float> gradients_;
  std::vector<uint8_t> labels_;
  // One row per image of the batch.
  Matrix inputs_, hidden_, outputs_;  // outputs_ holds probabilities, then the loss's derivative.
  Matrix hidden_errors_;
};

}  // namespace fashion
