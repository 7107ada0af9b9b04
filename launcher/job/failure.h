// Failure: how a rank ended when it should not have, and which of several failures was the first cause.
//
// Threads: plain functions.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace annulus {

struct Failure {
  static constexpr int kWholeHost = -1;
  static constexpr int kNobody = -1;
  static constexpr int kAnother = -2;

  int rank = kWholeHost;
  pid_t pid = -1;
  int wait_status = 0;  // From waitpid. Has no meaning for a whole host.
  std::string host{};   // "" for this host, in a job that has no other.
  std::string text{};   // For a whole host: what happened to it.
  // The rank that the failed rank's verdict names, kAnother if its number is not known, kNobody if it had no verdict.
  int blames = kNobody;

  // Whether the rank failed because of another one.
  bool is_consequence() const { return blames != kNobody && blames != rank; }
};

// Returns the failure that caused the others. A rank that was killed, or a host that was lost, did not fail because of
// another rank: the first of these is the cause, even if it was noticed later. A rank that aborted may have, because an
// unhandled error ends a program this way. Without a kill or a lost host, the first rank that a verdict names is the
// cause, otherwise the first that is not a consequence, otherwise the failure noticed first. `failures` is in the order
// of being noticed, and not empty.
const Failure& FirstCause(const std::vector<Failure>& failures);

// How long a culprit that still runs may take to end. A dying process closes its connections before it can be reaped,
// and its parent may be a script that goes on for a while.
constexpr Nanoseconds kCulpritTime = 1 * kSecond;

// Whether all failures are consequences, and one of them names a rank that `is_running` and so may still turn out as
// the cause.
bool AwaitsCulprit(const std::vector<Failure>& failures, const std::function<bool(int rank)>& is_running);

// "rank 2 (pid 17 on host2) was killed by signal 9 (Killed)".
std::string Describe(const Failure& failure);

// The exit status of annulus-run for this failure.
int ExitStatusOf(const Failure& failure);

}  // namespace annulus
