// Tuner: measures what each algorithm takes on this job's links, and makes a new communicator choose by it.
//
// Every algorithm that the ranks' links allow does allreduces of up to three sizes; rank 0 compares its times with
// those of the cost model, and tells all ranks the factors between them, so that all choose alike. Rank 0 may find the
// factors in a file instead.
//
// Threads: by the one that makes the communicator, before anybody else has it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/choice/tuning_file.h"
#include "collectives/choice/tuning_fit.h"
#include "collectives/comm/communicator.h"

namespace annulus {

class Tuner {
 public:
  // `give_up`, if set, is asked between calls; a failure ends the tuning.
  Tuner(Communicator* communicator, Setup::GiveUp give_up) : comm_(communicator), give_up_(std::move(give_up)) {}

  // On all ranks alike. Each algorithm and size takes about 15 ms, or what its five calls take where these are slow:
  // two of them broadcasts of 8 bytes. Errors: of the calls, each of which has to end within the connect timeout; of
  // the file when it is broken, on all ranks; of give_up. A file that cannot be written is a warning of rank 0.
  Status Tune(const std::string& file);

 private:
  Status TuneInTime(const std::string& file);
  TuningSubject Subject() const;
  Status Measure(MeasuredFactors* factors);
  Status MeasureAlgorithm(Algorithm algorithm, AlgorithmFactors* factors);
  // What a call takes by rank 0's clock; the same on every rank.
  Status Time(size_t bytes, Timing* timing);
  Status Allreduce(size_t bytes);
  // Gives every rank what rank 0 has.
  Status Spread(void* data, size_t bytes);
  Status Run(const CallArguments& arguments);
  Status GivenUp() const { return give_up_ ? give_up_() : Status(); }

  Communicator* const comm_;
  const Setup::GiveUp give_up_;
  std::vector<float> buffer_;
};

}  // namespace annulus
