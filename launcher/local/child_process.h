// ChildProcess: starts one program below the launcher - a rank, or the ssh that leads to another host.
//
// The child dies with its parent (PR_SET_PDEATHSIG). It stays in the launcher's process group, so that the terminal's
// keys (interrupt, suspend) reach it as in any pipeline, unless it is given a session of its own.
//
// Threads: one; the caller must be single-threaded, as it forks.
#pragma once

#include <sys/resource.h>
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
  int input_fd = kNoInput;               // Becomes standard input; the caller's own may be given.
  bool capture = true;                   // Standard output and error go to pipes; else they are the launcher's.
  bool own_session = false;              // Out of the terminal's reach, its keys working again.
  sigset_t signal_mask{};
  rlimit open_files{};
  CpuMask cpus;  // To run on, with all threads; empty: where the launcher may.
};

struct ChildProcess {
  pid_t pid = -1;
  int out_fd = -1;  // Non-blocking ends to read; the caller closes them. -1 without capture.
  int err_fd = -1;
};

// Returns once the program runs.
//
// Errors: kInvalidArgument  the program cannot be executed; os_errno says why.
//         kSystem           no pipe or process.
Status StartChild(const ChildProgram& program, ChildProcess* process);

// What annulus-run exits with when StartChild returned `status`: as the shell's 126 and 127.
int ExitStatusOf(const Status& status);

// Raises the limit of open files to what the system allows, for the pipes of many children. Returns the former limit.
rlimit RaiseOpenFiles();

}  // namespace annulus
