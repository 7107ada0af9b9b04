// RankProcess: starts one rank's program.
//
// The child dies with its parent (PR_SET_PDEATHSIG). Rank 0 keeps standard input, the others get /dev/null. All stay in
// the launcher's process group, so that the terminal's keys (interrupt, suspend) reach them as in any pipeline.
//
// Threads: one; the caller must be single-threaded, as it forks.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/status.h"

namespace annulus {

struct RankProgram {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value"
  int rank = 0;
  bool capture = true;  // Standard output and error go to pipes; else they are the launcher's.
  sigset_t signal_mask{};
  rlimit open_files{};
};

struct RankProcess {
  pid_t pid = -1;
  int out_fd = -1;  // Non-blocking ends to read; the caller closes them. -1 without capture.
  int err_fd = -1;
};

// Returns once the program runs.
//
// Errors: kInvalidArgument  the program cannot be executed; os_errno says why.
//         kSystem           no pipe or process.
Status StartRank(const RankProgram& program, RankProcess* process);

}  // namespace annulus
