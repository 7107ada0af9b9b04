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

// What annulus-run decides for each rank; -x must not contradict it.
constexpr const char* kOwnVariables[] = {"ANNULUS_RANK", "ANNULUS_SIZE", "ANNULUS_LOCAL_RANK", "ANNULUS_LOCAL_SIZE",
                                         "ANNULUS_RENDEZVOUS"};

// -x NAME=VALUE, or -x NAME for the value that it has here.
struct Assignment {
  std::string name;
  std::optional<std::string> value;
};

struct RunArguments {
  int nranks = 0;
  std::vector<Assignment> variables;
  bool prefix = true;
  int64_t timeout_s = 0;  // 0: none.
  bool watch = false;
  bool bind = true;  // Each rank to a share of its host's cores.
  std::vector<std::string> command;

  // Where the ranks go; empty when all run here, without ssh.
  std::vector<Placement> placements;
  std::vector<std::string> ssh{"ssh"};  // The command that leads to a host, as words.
  std::string remote_path;              // Of annulus-run on other hosts; "" for the path that it has here.
  std::string rendezvous_host;          // Address of the first host for the others; "" to find it out.
  int64_t link_timeout_s = 20;          // A host of which so long nothing was heard is lost.
};

// Parses the command line. Returns the exit status when there is nothing to run: after --help and the like, or after a
// mistake, which it has explained on standard error.
std::optional<int> ParseArguments(int argc, const char* const* argv, RunArguments* arguments);

}  // namespace annulus
