// Guardian: runs the supervisor in a separate process and outlives it, so that even a SIGKILL leaves no orphan.
//
//   annulus-run (guardian) --- supervisor --- rank 0, rank 1, ... and what they start
//
// Either process may die at any moment. When the guardian dies, the supervisor gets SIGRTMIN, which no caller ignores,
// and kills everything that it started. When the supervisor dies, its ranks die with it. Their children become the
// guardian's, and the guardian kills them.
//
// Threads: one; the process must be single-threaded, because it forks.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <functional>

namespace annulus {

struct GuardedContext {
  pid_t guardian;
  sigset_t caught;    // Blocked, to be read by a SignalQueue: SIGCHLD and the signals that end the job.
  sigset_t original;  // The signal mask that annulus-run was started with.
};

// Runs `supervise` in a child process that is a subreaper, and returns its exit status.
int RunGuarded(const std::function<int(const GuardedContext&)>& supervise);

}  // namespace annulus
