// Failure: how a rank ended when it should not have, and which of several failures was the first cause.
//
// Threads: plain functions.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace annulus {

struct Failure {
  static constexpr int kWholeHost = -1;

  int rank = kWholeHost;
  pid_t pid = -1;
  int wait_status = 0;  // From waitpid. Has no meaning for a whole host.
  std::string host{};   // "" for this host, in a job that has no other.
  std::string text{};   // For a whole host: what happened to it.
};

// Returns the failure that caused the others. A rank that was killed, or a host that was lost, did not fail because of
// another rank: the first of these is the cause, even if it was noticed later. A rank that aborted may have, because an
// unhandled error ends a program this way. Without a kill or a lost host, the failure noticed first is the cause.
// `failures` is in the order of being noticed, and not empty.
const Failure& FirstCause(const std::vector<Failure>& failures);

// "rank 2 (pid 17 on host2) was killed by signal 9 (Killed)".
std::string Describe(const Failure& failure);

// The exit status of annulus-run for this failure.
int ExitStatusOf(const Failure& failure);

}  // namespace annulus
