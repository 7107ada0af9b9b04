// fashion_mnist: trains a 784-256-10 network on Fashion-MNIST on all ranks of a job, with gradients averaged by
// Annulus.
//
// Threads: one, beside the communicator's own.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <limits>

#include "docs/examples/fashion_mnist/trainer.h"

namespace fashion {
namespace {

void Declare(CLI::App& app, Settings& settings) {
  app.option_defaults()->always_capture_default();
  app.add_option("--data", settings.data_folder, "folder of the four .gz files");
  app.add_option("--epochs", settings.epochs, "times through the training images")->check(CLI::Range(1, 10000));
  app.add_option("--stop-after", settings.stop_after, "end after so many epochs, to resume later; 0 = do not")
      ->check(CLI::Range(0, 10000));
  app.add_option("--batch", settings.rank_batch, "images per rank and step; the learning rate grows with the ranks")
      ->check(CLI::Range(1, 100000));
  app.add_option("--global-batch", settings.global_batch, "images per step of all ranks together, instead of --batch")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--learning-rate", settings.learning_rate, "peak, before it grows with the ranks");
  app.add_option("--momentum", settings.momentum, "share of the last step that the next one keeps");
  app.add_option("--seed", settings.seed, "of the weights and the shuffles");
  app.add_option("--train-images", settings.train_images, "use only the first so many; 0 = all");
  app.add_option("--test-images", settings.test_images, "use only the first so many; 0 = all");
  app.add_option("--checkpoint", settings.checkpoint_path, "file that rank 0 writes after each epoch");
  app.add_flag("--resume", settings.resume, "go on from the checkpoint");
  app.add_option("--loss-csv", settings.loss_csv_path, "file for the loss of each step");
  app.add_option("--target-accuracy", settings.target_accuracy, "fail when the test accuracy ends below");
}

void PrintStart(const Trainer& trainer, const Job& job, const Dataset& train, const Settings& settings) {
  std::printf(
      "Training a 784-256-10 network on %zu Fashion-MNIST images with %d %s: batches of %d images (%d per rank), "
      "%d steps per epoch, learning rate up to %g.\n",
      train.size(), job.size(), job.size() == 1 ? "rank" : "ranks", trainer.global_batch(),
      trainer.global_batch() / job.size(), trainer.steps_per_epoch(),
      static_cast<double>(trainer.peak_learning_rate()));
  if (trainer.epochs_done() > 0)
    std::printf("Resuming %s after epoch %d.\n", settings.checkpoint_path.c_str(), trainer.epochs_done());
  std::fflush(stdout);
}

void Load(Job& job, const Settings& settings, Dataset* train, Dataset* test) {
  std::string error = LoadDataset(settings.data_folder, "train", settings.train_images, train);
  if (error.empty()) error = LoadDataset(settings.data_folder, "t10k", settings.test_images, test);
  if (error.empty()) error = SettingsError(settings, job.size(), train->size());
  job.EndIfAny(error);
}

void StartTraining(Job& job, const Settings& settings, Trainer* trainer) {
  if (!settings.resume) {
    trainer->StartFresh();
    return;
  }
  Checkpoint checkpoint;
  std::string error;
  if (job.rank() == 0) {
    error = settings.checkpoint_path.empty() ? "--resume needs --checkpoint, the file to go on from"
                                             : LoadCheckpoint(settings.checkpoint_path, &checkpoint);
  }
  job.EndIfAny(error);
  trainer->Start(checkpoint);
}

int Run(const Settings& settings) {
  Job job;
  const bool speaks = job.rank() == 0;
  Dataset train, test;
  Load(job, settings, &train, &test);
  Trainer trainer(job, settings, train, test);
  StartTraining(job, settings, &trainer);
  std::ofstream losses;
  const bool writes_losses = speaks && !settings.loss_csv_path.empty();
  if (writes_losses) losses.open(settings.loss_csv_path, std::ios::trunc);
  job.EndIfAny(writes_losses && !losses ? "cannot write " + settings.loss_csv_path : "");
  losses.precision(std::numeric_limits<float>::max_digits10);
  if (writes_losses) losses << "step,epoch,loss\n";

  if (speaks) PrintStart(trainer, job, train, settings);
  EpochResult result;
  if (trainer.epochs_done() >= settings.epochs) result.accuracy = trainer.TestAccuracy();
  for (int done = 0; trainer.epochs_done() < settings.epochs; ++done) {
    if (settings.stop_after > 0 && done == settings.stop_after) return EXIT_SUCCESS;
    result = trainer.TrainEpoch(writes_losses ? &losses : nullptr);
    if (speaks) {
      std::printf(
          "epoch %d/%d: loss %.4f, test accuracy %.4f, %.0f images/s, %.1f %% of the time waiting for gradients\n",
          trainer.epochs_done(), settings.epochs, result.loss, result.accuracy, result.images_per_s,
          result.waiting_share * 100);
      std::fflush(stdout);
    }
    const bool saves = speaks && !settings.checkpoint_path.empty();
    job.EndIfAny(saves ? SaveCheckpoint(settings.checkpoint_path, trainer.MakeCheckpoint()) : "");
  }
  if (result.accuracy >= settings.target_accuracy) return EXIT_SUCCESS;
  if (speaks)
    std::fprintf(stderr, "fashion_mnist: test accuracy %.4f is below %.4f\n", result.accuracy,
                 settings.target_accuracy);
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace fashion

int main(int argc, char** argv) {
  CLI::App app("Data-parallel training on Fashion-MNIST; start it with: annulus-run -np 4 train", "fashion_mnist");
  fashion::Settings settings;
  fashion::Declare(app, settings);
  CLI11_PARSE(app, argc, argv);
  return fashion::Run(settings);
}
