// Trainer: stochastic gradient descent with momentum, data-parallel over the ranks of a job.
//
// Every rank holds the whole network. In each step it works on its own part of the batch, the gradients are averaged
// over the ranks, and all ranks change their weights alike: since Annulus gives every rank the same bits, the networks
// stay equal without ever being compared.
//
// Threads: one thread at a time; collective: all ranks call each method in the same order.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "docs/examples/fashion_mnist/checkpoint.h"
#include "docs/examples/fashion_mnist/dataset.h"
#include "docs/examples/fashion_mnist/job.h"
#include "docs/examples/fashion_mnist/network.h"

namespace fashion {

struct Settings {
  std::string data_folder = kDefaultFolder;
  int epochs = 10;
  int stop_after = 0;           // Epochs of this run, 0 = all that are left.
  int rank_batch = 32;          // Images per rank and step; more ranks make larger steps with a larger learning rate.
  int global_batch = 0;         // When not 0: images per step of all ranks together; the ranks only share the work.
  float learning_rate = 0.02f;  // For rank_batch images; grows with the ranks unless global_batch is given.
  float momentum = 0.9f;
  uint64_t seed = 1;
  size_t train_images = 0;  // 0 = all.
  size_t test_images = 0;
  std::string checkpoint_path;
  bool resume = false;
  std::string loss_csv_path;
  double target_accuracy = 0;  // Below it the program fails.
};

struct EpochResult {
  double loss = 0;           // Mean over the epoch's steps.
  double accuracy = 0;       // On the test images, after the epoch.
  double images_per_s = 0;   // Rate of all ranks together.
  double waiting_share = 0;  // Share of the training time that averaging cost beyond the overlap; mean over the ranks.
};

class Trainer {
 public:
  // `settings` fit each other and the data (SettingsError).
  Trainer(Job& job, const Settings& settings, const Dataset& train, const Dataset& test);

  // Gives every rank the state of rank 0: fresh weights, or those of `from`.
  void Start(const Checkpoint& from);
  void StartFresh();

  // Trains one epoch; rank 0 adds a line per step to `loss_csv` unless it is null.
  EpochResult TrainEpoch(std::ostream* loss_csv);

  // The share of the test images that the network classifies rightly; each rank looks at its part of them.
  double TestAccuracy();

  int epochs_done() const { return static_cast<int>(epochs_done_); }
  int steps_per_epoch() const { return static_cast<int>(train_.size()) / global_batch_; }
  int global_batch() const { return global_batch_; }
  float peak_learning_rate() const { return peak_rate_; }
  Checkpoint MakeCheckpoint();

 private:
  void BroadcastState();
  std::vector<uint32_t> ShuffledImages() const;
  float LearningRate(int64_t step) const;
  // Averages the gradients of all ranks while it computes them; adds the time that it had to wait to *waiting_s.
  void ComputeGradients(std::span<const uint32_t> images, double* waiting_s);
  void UpdateParameters(float learning_rate);

  Job& job_;
  const Settings& settings_;
  const Dataset& train_;
  const Dataset& test_;
  const int global_batch_;
  const float peak_rate_;
  uint64_t seed_;
  int64_t epochs_done_ = 0;
  Network network_;
  std::vector<float> velocities_;
};

// Returns "" or why `settings` cannot be used with so many ranks and images.
std::string SettingsError(const Settings& settings, int ranks, size_t train_images);

}  // namespace fashion
