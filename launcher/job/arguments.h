// RunArguments: the command line of annulus-run.
//
// Threads: one; before the job starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/exit_status.h"
#include "launcher/job/hosts.h"

namespace annulus {

// Variables that annulus-run sets for each rank; -x must not contradict them.
constexpr const char* kOwnVariables[] = {"ANNULUS_RANK",       "ANNULUS_SIZE",       "ANNULUS_LOCAL_RANK",
                                         "ANNULUS_LOCAL_SIZE", "ANNULUS_RENDEZVOUS", "ANNULUS_RUN_ID"};

// -x NAME=VALUE, or -x NAME for the value in this process's environment.
struct Assignment {
  std::string name;
  std::optional<std::string> value;
};

struct RunArguments {
  int nranks = 0;
  std::vector<Assignment> variables;
  bool prefix = true;
  int64_t timeout_s = 0;  // Seconds; 0: none.
  bool watch = false;
  bool bind = true;  // Whether each rank is bound to a share of its host's cores.
  std::vector<std::string> command;

  // Placement of the ranks; empty when all run here, without ssh.
  std::vector<Placement> placements;
  std::vector<std::string> ssh{"ssh"};  // Command that connects to a host, as words.
  std::string remote_path;              // Path of annulus-run on other hosts; "": the same path as here.
  std::string rendezvous_host;          // Address of the first host for the others; "": find it.
  // Silence after which a host counts as lost, in seconds.
  int64_t link_timeout_s = 20;
};

// Parses the command line. Returns the exit status when there is nothing to run: after --help and the like, or after an
// error, which it has explained on standard error.
std::optional<int> ParseArguments(int argc, const char* const* argv, RunArguments* arguments);

}  // namespace annulus
