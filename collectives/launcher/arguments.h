// Arguments: the command line of annulus-run.
//
// Threads: one; before the job starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus {

struct Arguments {
  int nranks = 0;
  std::vector<std::pair<std::string, std::string>> variables;  // -x NAME=VALUE
  bool prefix = true;
  int64_t timeout_s = 0;  // 0: none.
  std::vector<std::string> command;
};

// Exit statuses of annulus-run's own, beside those of ranks and 128 + signal.
constexpr int kExitUsage = 2;
constexpr int kExitTimeout = 124;        // As timeout(1).
constexpr int kExitCannotLaunch = 125;   // As env(1): the launcher itself failed.
constexpr int kExitCannotExecute = 126;  // As the shell: found, but not to be run.
constexpr int kExitNotFound = 127;       // As the shell.

// Parses the command line. Returns the exit status when there is nothing to run: after --help and the like, or after a
// mistake, which it has explained on standard error.
std::optional<int> ParseArguments(int argc, const char* const* argv, Arguments* arguments);

}  // namespace annulus
