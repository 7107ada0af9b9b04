// ChildProcess: starts one program below the launcher: a rank, or the ssh that connects to another host.
//
// The child dies with its parent (PR_SET_PDEATHSIG). It stays in the launcher's process group, so that the terminal's
// keys (interrupt, suspend) reach it as in any pipeline, unless it gets a session of its own.
//
// Threads: one; the caller must be single-threaded, because it forks.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/cpus.h"
#include "base/status.h"

namespace annulus {

struct ChildProgram {
  static constexpr int kNoInput = -1;  // /dev/null

  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value"
  int input_fd = kNoInput;               // Becomes standard input; may be the caller's own.
  bool capture = true;                   // Standard output and error go to pipes; otherwise they are the launcher's.
  bool own_session = false;              // A new session, out of the terminal's reach; stop signals work again.
  sigset_t signal_mask{};
  CpuMask cpus;  // CPUs for all threads of the program; empty: where the launcher may run.
};

struct ChildProcess {
  pid_t pid = -1;
  // Non-blocking read end of standard output; the caller closes it. -1 without capture.
  int out_fd = -1;
  // The same for standard error.
  int err_fd = -1;
};

// Returns once the program runs.
//
// Errors: kInvalidArgument  the program cannot be executed; os_errno says why.
//         kSystem           no pipe or process.
Status StartChild(const ChildProgram& program, ChildProcess* process);

// The exit status of annulus-run when StartChild returned `status`: 126 and 127, as the shell's.
int ExitStatusOf(const Status& status);

// Raises the soft limit of open files to the hard one: many children need many pipes, and they inherit the limit for
// their own connections.
void RaiseOpenFiles();

}  // namespace annulus
