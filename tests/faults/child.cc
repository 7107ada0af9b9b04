#include "tests/faults/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

extern char** environ;

namespace annulus {
namespace {

int PollTimeout(Deadline deadline) {
  return static_cast<int>(std::clamp<Nanoseconds>((deadline - Now()) / kMillisecond + 1, 0, 1'000'000));
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Child::Child(const std::string& program, const std::vector<std::string>& arguments, const Environment& environment) {
  int in[2];
  int out[2];
  ANNULUS_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  ANNULUS_CHECK(fcntl(out[0], F_SETFL, O_NONBLOCK) == 0);
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string(*entry).rfind("ANNULUS_", 0) != 0) texts.push_back(*entry);
  }
  for (const auto& [name, value] : environment) texts.push_back(name + "=" + value);
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
  const int error =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, Pointers(&words).data(), Pointers(&texts).data());
  ANNULUS_CHECK(error == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_fd_ = out[0];
}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseInput();
  if (output_fd_ >= 0) close(output_fd_);
}

void Child::Signal(int signal) { ANNULUS_CHECK(pid_ > 0 && kill(pid_, signal) == 0); }

void Child::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

std::vector<std::string> Child::Lines() const {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = output_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(output_.substr(begin, end - begin));
  }
  return lines;
}

bool Child::HasLine(const std::string& line) const {
  const std::vector<std::string> lines = Lines();
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

std::string Child::After(const std::string& word) const {
  for (const std::string& line : Lines()) {
    if (line.rfind(word + " ", 0) == 0) return line.substr(word.size() + 1);
  }
  return "";
}

int Child::CountLines(const std::string& text, const std::string& other) const {
  const std::vector<std::string> lines = Lines();
  return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.find(text) != std::string::npos && line.find(other) != std::string::npos;
  }));
}

bool Child::Read(const std::vector<Child*>& children, Deadline deadline) {
  std::vector<pollfd> polls;
  for (const Child* child : children) {
    if (child->output_fd_ >= 0) polls.push_back({child->output_fd_, POLLIN, 0});
  }
  if (polls.empty() || Now() >= deadline) return false;
  if (poll(polls.data(), polls.size(), PollTimeout(deadline)) <= 0) return false;
  for (Child* child : children) {
    char buffer[4096];
    ssize_t bytes = -1;
    while (child->output_fd_ >= 0 && (bytes = read(child->output_fd_, buffer, sizeof buffer)) > 0) {
      child->output_.append(buffer, bytes);
    }
    if (child->output_fd_ >= 0 && bytes == 0) {
      close(child->output_fd_);
      child->output_fd_ = -1;
    }
  }
  return true;
}

bool Child::Wait(const std::vector<Child*>& children, const std::function<bool()>& condition, Deadline deadline) {
  while (!condition()) {
    if (!Read(children, deadline)) return false;
  }
  return true;
}

int Child::ExitStatus(Deadline deadline) {
  Wait(
      {this}, [this] { return output_fd_ < 0; }, deadline);  // Lest it waits for us to read.
  if (pid_ <= 0) return -1;
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended = {handle, POLLIN, 0};
  const bool has_ended = handle >= 0 && poll(&ended, 1, PollTimeout(deadline)) == 1;
  if (handle >= 0) close(handle);
  if (!has_ended) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace annulus
