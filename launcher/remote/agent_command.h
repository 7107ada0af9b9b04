// AgentCommand: the command line that starts an agent, here or through ssh.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/arguments.h"

namespace annulus {

// The first argument of annulus-run that makes it an agent. Not for users.
constexpr char kAgentWord[] = "--agent";

// Quotes `text` as one word of a shell, whatever it contains.
std::string ShellQuoted(const std::string& text);

std::vector<std::string> AgentCommand(const RunArguments& arguments, const Placement& placement);

// This process's environment, as "NAME=value".
std::vector<std::string> CallersEnvironment();

}  // namespace annulus
