// Failure: how a rank ended when it should not have, and which of several was the first cause.
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
  int wait_status = 0;  // As waitpid gives it. Without meaning for a whole host.
  std::string host{};   // "" for this one in a job that has no other.
  std::string text{};   // Of a whole host: what happened to it.
};

// The first failure in time is the cause; but a rank that was killed is no follower, though it be noticed later, nor is
// a host that was lost. One that aborted may be: that is how an error that nobody handles ends a program. `failures` is
// in the order of being noticed, and not empty.
const Failure& FirstCause(const std::vector<Failure>& failures);

// "rank 2 (pid 17 on host2) was killed by signal 9 (Killed)".
std::string Describe(const Failure& failure);

// What annulus-run exits with.
int ExitStatusOf(const Failure& failure);

}  // namespace annulus
