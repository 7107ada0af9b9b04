#include "launcher/remote/agent_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <utility>

namespace annulus {
namespace {

// Time for ssh to end after the agent has ended.
constexpr Nanoseconds kExitTime = 5 * kSecond;

}  // namespace

void AgentProcess::Words::AddBytes(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() > kMaxBytes) text_.erase(0, text_.size() - kMaxBytes / 2);
}

std::string AgentProcess::Words::Last() const {
  std::string last;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();  // ssh ends its own lines with a carriage return.
    if (!line.empty()) last = line;
  }
  return last;
}

std::vector<std::string> AgentProcess::Words::TakeLines() {
  std::vector<std::string> taken;
  std::istringstream lines(text_);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    taken.push_back(line);
  }
  text_.clear();
  return taken;
}

Status AgentProcess::Start(ChildProgram program, int* output, int* input) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return Status::System("cannot make a pipe", errno);
  name_ = std::filesystem::path(program.command.front()).filename().string();
  program.input_fd = pipe[0];
  program.capture = true;
  program.own_session = true;
  ChildProcess process;
  const Status status = StartChild(program, &process);
  close(pipe[0]);
  if (!status.ok()) {
    close(pipe[1]);
    return status;
  }
  pid_ = process.pid;
  errors_ = std::make_unique<LineSource>(process.err_fd, &words_, "");
  *output = process.out_fd;
  *input = pipe[1];
  return {};
}

void AgentProcess::OnExit(int wait_status) {
  exit_ = wait_status;
  while (errors_->fd() >= 0) {
    if (!errors_->ReadSome()) errors_->Close();
  }
}

void AgentProcess::Kill() {
  if (pid_ > 0 && !exit_) kill(pid_, SIGKILL);
}

void AgentProcess::AwaitExit() {
  if (exit_) {
    exit_deadline_ = kNoDeadline;
  } else if (exit_deadline_ == kNoDeadline) {
    exit_deadline_ = DeadlineAfter(kExitTime);
  } else if (Now() >= exit_deadline_) {
    Kill();
    exit_deadline_ = DeadlineAfter(kExitTime);
  }
}

std::string AgentProcess::DescribeEnd() const {
  if (!exit_) return "";
  const std::string how = WIFSIGNALED(*exit_) ? " was killed by signal " + std::to_string(WTERMSIG(*exit_))
                                              : " exited with status " + std::to_string(WEXITSTATUS(*exit_));
  return " (" + name_ + how + ")" + LastLine(": ");
}

std::string AgentProcess::LastLine(const std::string& before, const std::string& after) const {
  const std::string last = words_.Last();
  return last.empty() ? "" : before + last + after;
}

}  // namespace annulus
