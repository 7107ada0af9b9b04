// Job: what all ranks of one run share (the key, the rendezvous), and each rank's environment.
//
// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "launcher/job/arguments.h"
#include "launcher/job/variables.h"
#include "transport/reserved_port.h"

namespace annulus {

class Job {
 public:
  // Prepares ranks on this machine: their whole environment and a reserved port. Creates a key unless the environment
  // has one. Checks the ANNULUS_* settings that the ranks will read, so that a mistake is reported once and not by
  // every rank.
  Status Prepare(const RunArguments& arguments, const char* const* environment);

  // Prepares ranks on several hosts. Their environment is that of their host plus variables(): the ANNULUS_* settings,
  // those of -x, the key. The rendezvous is still to be found.
  Status PrepareForHosts(const RunArguments& arguments, const char* const* environment);

  // The socket that listens at the rendezvous of ranks on this machine; -1 without them.
  int listener() const { return port_.listener(); }
  const Variables& variables() const { return shared_; }
  // The environment of a rank on this machine, as "NAME=value" for execve.
  std::vector<std::string> EnvironmentOf(int rank) const;

 private:
  Status AddAssignments(const RunArguments& arguments, const Variables& environment);
  Status EnsureKey();
  // Draws the id that tells this run's ranks from those of any other.
  Status NameRun();

  int nranks_ = 0;
  ReservedPort port_;
  Variables shared_;
};

// Returns 256 random bits in hexadecimal; "" when the system has no randomness available.
std::string MakeJobKey();

}  // namespace annulus
