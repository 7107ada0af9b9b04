// TuningFile: a JSON file that keeps the measured costs of a job's algorithms for its next runs.
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

// The facts that must be equal for measurements to apply.
struct TuningSubject {
  int nranks = 1;
  std::vector<int> host_of;   // As in Topology.
  std::string near;           // Name of the transport between ranks of one host; "": there is none.
  std::string far;            // The same between hosts.
  double ranks_per_core = 1;  // As in Topology.
  size_t small_bytes = 0;
  size_t slice_bytes = 0;
  int channels = 1;
  // Settings of transports that affect costs, by name.
  std::vector<std::pair<std::string, int64_t>> transport_settings;
};

// Sets *factors to what the file holds for `subject`, or to none when the file does not exist, has another version or
// describes another subject. Algorithms that the file does not name count as not measured. Does not wait for the writer
// of a pipe.
// Errors: kInvalidArgument naming the file, when it is anything else; kSystem when it cannot be read.
Status ReadTuningFile(const std::string& path, const TuningSubject& subject, std::optional<MeasuredFactors>* factors);

// Replaces the file atomically, so that nobody reads half of it. The new content is first written beside it, under a
// name that cannot be predicted. Errors: kSystem naming the file.
Status WriteTuningFile(const std::string& path, const TuningSubject& subject, const MeasuredFactors& factors);

}  // namespace annulus
