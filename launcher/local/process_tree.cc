#include "launcher/local/process_tree.h"

#include <dirent.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"

namespace annulus {
namespace {

struct Process {
  pid_t parent;
  char state;
};

bool ReadProcess(const char* pid, Process* process) {
  std::ifstream file(std::string("/proc/") + pid + "/stat");
  std::string line;
  // The whole file. The process may end meanwhile: getline then returns less, where an iterator would throw.
  std::getline(file, line, '\0');
  // "pid (name) state parent ...": the name may hold anything, so the last parenthesis counts.
  const size_t close = line.rfind(')');
  if (close == std::string::npos) return false;
  return std::sscanf(line.c_str() + close + 1, " %c %d", &process->state, &process->parent) == 2;
}

}  // namespace

std::vector<pid_t> Descendants() {
  std::multimap<pid_t, pid_t> children;
  std::map<pid_t, char> states;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (!directory) return {};
  while (const dirent* entry = readdir(directory.get())) {
    Process process;
    if (!std::isdigit(static_cast<unsigned char>(entry->d_name[0])) || !ReadProcess(entry->d_name, &process)) continue;
    const pid_t pid = std::atoi(entry->d_name);
    children.emplace(process.parent, pid);
    states[pid] = process.state;
  }
  std::vector<pid_t> found{getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  std::vector<pid_t> living;
  for (size_t i = 1; i < found.size(); ++i) {
    if (states[found[i]] != 'Z') living.push_back(found[i]);
  }
  return living;
}

int SignalDescendants(int signal) {
  const std::vector<pid_t> descendants = Descendants();
  for (const pid_t pid : descendants) kill(pid, signal);
  return static_cast<int>(descendants.size());
}

bool KillDescendants(int timeout_ms) {
  constexpr int kRetryMs = 10;  // A process may fork between the scan and the signal.
  const Deadline deadline = DeadlineAfter(timeout_ms * kMillisecond);
  while (true) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0 || (reaped < 0 && errno == EINTR));
    if (reaped < 0) return true;  // ECHILD: a process without children has no descendants.
    if (Now() >= deadline) return false;
    SignalDescendants(SIGKILL);
    poll(nullptr, 0, kRetryMs);
  }
}

}  // namespace annulus
