// TuningFile: what was measured of a job's algorithms, kept for its next runs. JSON.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/choice/algorithm_choice.h"

namespace annulus {

// What must be equal for measurements to hold.
struct TuningSubject {
  int nranks = 1;
  std::vector<int> host_of;  // These as in PlanSettings.
  std::string near;          // Name of the transport between ranks of one host.
  double ranks_per_core = 1;
  size_t small_bytes = 0;
  size_t slice_bytes = 0;
  int channels = 1;
  // The settings of transports on which costs depend, by name.
  std::vector<std::pair<std::string, int64_t>> transport_settings;
};

// Sets *factors to what the file says of `subject`; to none when there is no file, or it is another version's or of
// another subject. Algorithms that it does not know count as not measured. Does not wait for a pipe's writer.
// Errors: kInvalidArgument naming the file, when it is none of these; kSystem, when it cannot be read.
Status ReadTuningFile(const std::string& path, const TuningSubject& subject, std::optional<MeasuredFactors>* factors);

// Replaces the file at once, so that nobody reads half of it: what is written has a name that nobody can foresee, and
// lies beside it. Errors: kSystem naming the file.
Status WriteTuningFile(const std::string& path, const TuningSubject& subject, const MeasuredFactors& factors);

}  // namespace annulus
