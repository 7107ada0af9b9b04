// AgentCommand: the words that start an agent, here or through ssh.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/arguments.h"

namespace annulus {

// The first word after annulus-run that makes it an agent. Not for users.
constexpr char kAgentWord[] = "--agent";

// `text` as one word of a shell, whatever it holds.
std::string ShellQuoted(const std::string& text);

std::vector<std::string> AgentCommand(const RunArguments& arguments, const Placement& placement);

// This process's environment, "NAME=value".
std::vector<std::string> CallersEnvironment();

}  // namespace annulus
