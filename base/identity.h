// Identity: which start of which job a process belongs to, and which of its communicators it sets up. Every handshake
// carries it, so that ranks left over from another start are told apart from the true ones.
//
// Threads: values and plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace annulus {

// One start of a job.
struct JobRun {
  static constexpr size_t kMostBytes = 64;  // Longest id.

  std::string id = "";   // The launcher's name of the job, or the user's; "" when there is none.
  uint32_t restart = 0;  // Number of times that the launcher has started this run again.

  bool operator==(const JobRun&) const = default;
};

struct Identity {
  JobRun run = {};
  uint64_t job = 0;    // Random number of a communicator. At a rendezvous, that of the parent; 0 without a parent.
  uint32_t epoch = 0;  // At the rendezvous of a split: how many communicators the parent had split off before, plus 1.
};

// An id of any length as one of at most JobRun::kMostBytes. What is longer keeps its beginning and ends in a hash.
std::string ShortRunId(const std::string& id);

// "run B restart 1", "no run restart 0". What cannot be printed is replaced: an id may come from a stranger.
std::string JobRunText(const JobRun& run);

}  // namespace annulus
