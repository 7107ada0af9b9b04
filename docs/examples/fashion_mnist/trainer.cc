// The training loop, and where the gradients of all ranks meet.
//
// Threads: see trainer.h. Averages run on the communicator's own thread while this one computes.
#include "docs/examples/fashion_mnist/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

namespace fashion {
namespace {

// The hidden layer's gradient is computed in so many parts; all but the last are averaged behind the next one's back.
constexpr int kHiddenBuckets = 2;
static_assert(kHidden % kHiddenBuckets == 0);
// Images at once when nothing is learned from them.
constexpr size_t kTestBatch = 500;

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

int GlobalBatch(const Settings& settings, int ranks) {
  return settings.global_batch != 0 ? settings.global_batch : settings.rank_batch * ranks;
}

// A batch that is k times larger is a better estimate of the gradient, and bears a step k times as long.
float PeakRate(const Settings& settings, int ranks) {
  return settings.global_batch != 0 ? settings.learning_rate : settings.learning_rate * static_cast<float>(ranks);
}

}  // namespace

std::string SettingsError(const Settings& settings, int ranks, size_t train_images) {
  if (settings.global_batch % ranks != 0) {
    return "--global-batch " + std::to_string(settings.global_batch) + " cannot be shared by " + std::to_string(ranks) +
           " ranks evenly";
  }
  const size_t batch = static_cast<size_t>(GlobalBatch(settings, ranks));
  if (train_images < batch) {
    return "a batch of " + std::to_string(batch) + " is more than the " + std::to_string(train_images) + " images";
  }
  return "";
}

Trainer::Trainer(Job& job, const Settings& settings, const Dataset& train, const Dataset& test)
    : job_(job),
      settings_(settings),
      train_(train),
      test_(test),
      global_batch_(GlobalBatch(settings, job.size())),
      peak_rate_(PeakRate(settings, job.size())),
      seed_(settings.seed),
      velocities_(kParameters) {}

void Trainer::StartFresh() {
  // Rank 0 alone draws the weights; the others get them as they would get any state.
  if (job_.rank() == 0) network_.Initialise(seed_);
  BroadcastState();
}

void Trainer::Start(const Checkpoint& from) {
  if (job_.rank() == 0) {
    seed_ = from.seed;
    epochs_done_ = from.epochs_done;
    network_.parameters() = from.parameters;
    velocities_ = from.velocities;
  }
  BroadcastState();
}

void Trainer::BroadcastState() {
  job_.Broadcast(&seed_, sizeof(seed_));
  job_.Broadcast(&epochs_done_, sizeof(epochs_done_));
  job_.Broadcast(network_.parameters().data(), kParameters * sizeof(float));
  job_.Broadcast(velocities_.data(), kParameters * sizeof(float));
}

Checkpoint Trainer::MakeCheckpoint() { return {epochs_done_, seed_, network_.parameters(), velocities_}; }

std::vector<uint32_t> Trainer::ShuffledImages() const {
  // The same on every rank, another in every epoch.
  std::mt19937_64 random(seed_ + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(epochs_done_ + 1));
  std::vector<uint32_t> order(train_.size());
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  return order;
}

float Trainer::LearningRate(int64_t step) const {
  const double epoch = static_cast<double>(step) / steps_per_epoch();
  // The first epoch warms up: a long step from random weights can only go astray.
  if (epoch < 1) return peak_rate_ * static_cast<float>((static_cast<double>(step) + 1) / steps_per_epoch());
  const double progress = (epoch - 1) / std::max(1, settings_.epochs - 1);
  return peak_rate_ * static_cast<float>((1 + std::cos(std::numbers::pi * progress)) / 2);
}

void Trainer::ComputeGradients(std::span<const uint32_t> images, double* waiting_s) {
  std::vector<float>& gradients = network_.gradients();
  network_.Forward(train_, images);
  network_.BackwardOutput();
  // What is finished goes on its way; the rest of the backward pass goes on meanwhile.
  job_.StartAverage(gradients.data() + kHiddenWeights, gradients.size() - kHiddenWeights);
  constexpr int kUnits = kHidden / kHiddenBuckets;
  for (int bucket = 0; bucket < kHiddenBuckets; ++bucket) {
    network_.BackwardHidden(bucket * kUnits, kUnits);
    job_.StartAverage(gradients.data() + size_t{kPixels} * kUnits * static_cast<size_t>(bucket),
                      size_t{kPixels} * kUnits);
  }
  const auto start = SteadyClock::now();
  job_.FinishAverages();
  *waiting_s += SecondsSince(start);
}

void Trainer::UpdateParameters(float learning_rate) {
  const Eigen::Map<const Eigen::ArrayXf> gradients(network_.gradients().data(), kParameters);
  Eigen::Map<Eigen::ArrayXf> parameters(network_.parameters().data(), kParameters);
  Eigen::Map<Eigen::ArrayXf> velocities(velocities_.data(), kParameters);
  velocities = settings_.momentum * velocities + gradients;
  parameters -= learning_rate * velocities;
}

EpochResult Trainer::TrainEpoch(std::ostream* loss_csv) {
  const std::vector<uint32_t> order = ShuffledImages();
  const size_t part = static_cast<size_t>(global_batch_ / job_.size());
  const int steps = steps_per_epoch();
  double losses = 0, waiting_s = 0;
  const auto start = SteadyClock::now();
  for (int step = 0; step < steps; ++step) {
    const int64_t global_step = epochs_done_ * steps + step;
    // All ranks cut the same batch; each takes its own part of it.
    const size_t first =
        static_cast<size_t>(step) * static_cast<size_t>(global_batch_) + static_cast<size_t>(job_.rank()) * part;
    ComputeGradients(std::span(order).subspan(first, part), &waiting_s);
    UpdateParameters(LearningRate(global_step));
    const float loss = network_.gradients()[kParameters];
    losses += loss;
    if (loss_csv != nullptr) *loss_csv << global_step << ',' << epochs_done_ + 1 << ',' << loss << '\n';
  }
  const double seconds = SecondsSince(start);
  ++epochs_done_;
  std::vector<double> times = {seconds, waiting_s};
  job_.Sum(&times);
  return {losses / steps, TestAccuracy(), steps * global_batch_ / seconds, times[1] / times[0]};
}

double Trainer::TestAccuracy() {
  const size_t ranks = static_cast<size_t>(job_.size()), rank = static_cast<size_t>(job_.rank());
  const size_t end = test_.size() * (rank + 1) / ranks;
  double correct = 0;
  std::vector<uint32_t> images;
  for (size_t first = test_.size() * rank / ranks; first < end; first += images.size()) {
    images.resize(std::min(kTestBatch, end - first));
    std::iota(images.begin(), images.end(), static_cast<uint32_t>(first));
    network_.Forward(test_, images);
    correct += network_.CountCorrect();
  }
  std::vector<double> all = {correct};
  job_.Sum(&all);
  return all[0] / static_cast<double>(test_.size());
}

}  // namespace fashion
