// Tuner: measures the time of each algorithm on this job's links, and makes a new communicator choose by the results.
//
// Every algorithm that the ranks' links allow runs allreduces of up to three sizes. Rank 0 compares its times with
// those of the cost model and sends the resulting factors to all ranks, so that all choose alike. Rank 0 may read the
// factors from a file instead.
//
// Threads: the one that creates the communicator, before anyone else has it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/choice/plan.h"
#include "collectives/choice/tuning_file.h"
#include "collectives/choice/tuning_fit.h"

namespace annulus {

// The communicator to tune.
struct TuningJob {
  int rank = 0;
  PlanSettings plan;
  Topology topology;
  // Settings of transports that affect costs, by name.
  std::vector<std::pair<std::string, int64_t>> transport_settings;
  // Runs a collective with a deadline.
  std::function<Status(const CallArguments&)> run;
  // Makes the communicator use this choice from now on.
  std::function<void(const AlgorithmChoice&)> choose;
  // If set, called between collectives; if it fails, the tuning ends.
  std::function<Status()> give_up;
};

class Tuner {
 public:
  // `nominal` is the job's choice before tuning.
  Tuner(TuningJob job, const AlgorithmChoice& nominal) : job_(std::move(job)), nominal_(nominal) {}

  // Called on all ranks alike. Each algorithm and size takes about 15 ms, or the time of its five calls where these are
  // slow; two of them are broadcasts of 8 bytes. *source describes the source of the choice. Errors: of the calls; of
  // the file when it is broken, on all ranks; of give_up. If the file cannot be written, rank 0 logs a warning.
  Status Tune(const std::string& file, std::string* source);

 private:
  TuningSubject Subject() const;
  Status Measure(MeasuredFactors* factors);
  Status MeasureAlgorithm(Algorithm algorithm, AlgorithmFactors* factors);
  // Time of a call by rank 0's clock; the same on every rank.
  Status Time(size_t bytes, Timing* timing);
  Status Allreduce(size_t bytes);
  // Sends rank 0's data to every rank.
  Status Spread(void* data, size_t bytes);
  AlgorithmJob job() const { return {job_.plan, job_.topology}; }
  Status GivenUp() const { return job_.give_up ? job_.give_up() : Status(); }

  const TuningJob job_;
  const AlgorithmChoice nominal_;
  std::vector<float> buffer_;
};

}  // namespace annulus
