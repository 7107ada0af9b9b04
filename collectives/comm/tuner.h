// Tuner: measures what each algorithm takes on this job's links, and makes a new communicator choose by it.
//
// Every algorithm that the ranks' links allow does allreduces of up to three sizes; rank 0 compares its times with
// those of the cost model, and tells all ranks the factors between them, so that all choose alike. Rank 0 may find the
// factors in a file instead.
//
// Threads: by the one that makes the communicator, before anybody else has it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/choice/plan.h"
#include "collectives/choice/tuning_file.h"
#include "collectives/choice/tuning_fit.h"
#include "collectives/comm/call_arguments.h"

namespace annulus {

// The communicator that is tuned.
struct TuningJob {
  int rank = 0;
  int nranks = 1;
  PlanSettings plan;
  // The settings of transports on which costs depend, by name.
  std::vector<std::pair<std::string, int64_t>> transport_settings;
  // Does a collective, with a deadline.
  std::function<Status(const CallArguments&)> run;
  // Chooses algorithms in that way from now on.
  std::function<void(const AlgorithmChoice&)> choose;
  // If set, asked between calls; a failure ends the tuning.
  std::function<Status()> give_up;
};

class Tuner {
 public:
  // `nominal` is how the job chooses before it is tuned.
  Tuner(TuningJob job, const AlgorithmChoice& nominal) : job_(std::move(job)), nominal_(nominal) {}

  // On all ranks alike. Each algorithm and size takes about 15 ms, or what its five calls take where these are slow:
  // two of them broadcasts of 8 bytes. *source says in words where the choice comes from. Errors: of the calls; of the
  // file when it is broken, on all ranks; of give_up. A file that cannot be written is a warning of rank 0.
  Status Tune(const std::string& file, std::string* source);

 private:
  TuningSubject Subject() const;
  Status Measure(MeasuredFactors* factors);
  Status MeasureAlgorithm(Algorithm algorithm, AlgorithmFactors* factors);
  // What a call takes by rank 0's clock; the same on every rank.
  Status Time(size_t bytes, Timing* timing);
  Status Allreduce(size_t bytes);
  // Gives every rank what rank 0 has.
  Status Spread(void* data, size_t bytes);
  Status GivenUp() const { return job_.give_up ? job_.give_up() : Status(); }

  const TuningJob job_;
  const AlgorithmChoice nominal_;
  std::vector<float> buffer_;
};

}  // namespace annulus
