#include "launcher/remote/agent_command.h"

#include <unistd.h>

#include <filesystem>

namespace annulus {

std::string ShellQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::vector<std::string> AgentCommand(const RunArguments& arguments, const Placement& placement) {
  std::error_code error;
  const std::string own_path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (placement.here) return {own_path, kAgentWord};
  std::vector<std::string> command = arguments.ssh;
  // Nobody could answer a question of ssh, so it must not ask for a password or about the host's key. And it must not
  // start a process for other connections to share: that would end with the job, and so would they.
  if (std::filesystem::path(command.front()).filename() == "ssh")
    command.insert(command.end(), {"-o", "BatchMode=yes", "-o", "ControlMaster=no"});
  command.push_back(placement.host);
  const std::string& path = arguments.remote_path.empty() ? own_path : arguments.remote_path;
  command.push_back("exec " + ShellQuoted(path) + " " + kAgentWord);
  return command;
}

std::vector<std::string> CallersEnvironment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

}  // namespace annulus
