#include "tests/launcher/launcher_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/check.h"

namespace annulus {
namespace {

constexpr char kLauncher[] = "launcher/annulus-run";
constexpr Nanoseconds kOrphanTime = 10 * kSecond;
constexpr Nanoseconds kStandstillTime = kSecond;

int MakeInput(const std::string& text) {
  int ends[2];
  ANNULUS_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  ANNULUS_CHECK(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(ends[1]);
  return ends[0];
}

// What a reader of a terminal's other end has: {it, the terminal}.
void MakeTerminal(int ends[2]) {
  ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ANNULUS_CHECK(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
  ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ANNULUS_CHECK(ends[1] >= 0);
}

}  // namespace

LauncherRun::LauncherRun(const Setup& setup) : deadline_(DeadlineAfter(setup.run_time)) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int out[2];
  int err[2];
  ANNULUS_CHECK(pipe2(out, O_CLOEXEC) == 0);
  if (setup.terminal) {
    MakeTerminal(err);
  } else {
    ANNULUS_CHECK(pipe2(err, O_CLOEXEC) == 0);
  }
  const int input = MakeInput(setup.input);
  const int output = setup.output.empty() ? -1 : open(setup.output.c_str(), O_WRONLY | O_CLOEXEC);
  ANNULUS_CHECK(setup.output.empty() || output >= 0);
  std::vector<char*> arguments{const_cast<char*>(kLauncher)};
  for (const std::string& argument : setup.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  ANNULUS_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    if (setup.own_group) setpgid(0, 0);
    dup2(input, STDIN_FILENO);
    dup2(output >= 0 ? output : out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const std::string& variable : setup.variables) putenv(const_cast<char*>(variable.c_str()));
    execv(kLauncher, arguments.data());
    _exit(99);
  }
  close(input);
  close(out[1]);
  close(err[1]);
  if (output >= 0) close(output);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

LauncherRun::~LauncherRun() {
  CloseOut();
  if (err_fd_ >= 0) close(err_fd_);
}

void LauncherRun::CloseOut() {
  if (out_fd_ >= 0) close(out_fd_);
  out_fd_ = -1;
}

bool LauncherRun::ReadSome() {
  std::array<pollfd, 2> polled{pollfd{out_fd_, POLLIN, 0}, pollfd{err_fd_, POLLIN, 0}};
  const Nanoseconds left = deadline_ - Now();
  if (left <= 0 || (out_fd_ < 0 && err_fd_ < 0)) return false;
  if (poll(polled.data(), polled.size(), static_cast<int>(left / kMillisecond) + 1) <= 0) return false;
  std::array<char, 65536> bytes;
  for (size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents == 0) continue;
    int& fd = i == 0 ? out_fd_ : err_fd_;
    const ssize_t got = read(fd, bytes.data(), bytes.size());
    if (got > 0) {
      (i == 0 ? out_ : err_).append(bytes.data(), got);
    } else {
      close(fd);
      fd = -1;
    }
  }
  return true;
}

void LauncherRun::AwaitLines(int count) {
  while (std::ranges::count(out_, '\n') < count) {
    if (!ReadSome()) break;
  }
  EXPECT_GE(std::ranges::count(out_, '\n'), count) << out_ << err_;
}

void LauncherRun::AwaitError(const std::string& text, size_t begin) {
  while (err_.find(text, begin) == std::string::npos) {
    if (!ReadSome()) break;
  }
  EXPECT_NE(err_.find(text, begin), std::string::npos) << text << " is not in: " << err_;
}

void LauncherRun::AwaitStandstill() {
  int before = -1;
  Nanoseconds since = Now();
  while (Now() < deadline_ && (before <= 0 || Now() < since + kStandstillTime)) {
    int waiting = 0;
    for (const int fd : {out_fd_, err_fd_}) {
      int bytes = 0;
      if (fd >= 0 && ioctl(fd, FIONREAD, &bytes) == 0) waiting += bytes;
    }
    if (waiting != before) since = Now();
    before = waiting;
    poll(nullptr, 0, 5);
  }
  EXPECT_GT(before, 0) << "the launcher has written nothing";
}

int LauncherRun::Finish() {
  while (ReadSome()) {
  }
  return AwaitExit();
}

int LauncherRun::AwaitExit() {
  while (Now() < deadline_) {
    int status = 0;
    const pid_t pid = waitpid(pid_, &status, WNOHANG);
    if (pid == pid_) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    poll(nullptr, 0, 5);
  }
  ADD_FAILURE() << "annulus-run did not end: " << out_ << err_;
  kill(pid_, SIGKILL);
  return -1;
}

std::vector<std::string> LauncherRun::LinesOf(int rank) const {
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  std::vector<std::string> lines;
  std::istringstream all(out_);
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

LauncherRun::Setup ShellRanks(int nranks, const std::string& command) {
  return {.arguments = {"-np", std::to_string(nranks), "sh", "-c", command}};
}

void ExpectNoOrphans() {
  const Deadline deadline = DeadlineAfter(kOrphanTime);
  pid_t pid = 0;
  while (Now() < deadline) {
    pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0 && errno == ECHILD) return;
    if (pid == 0) poll(nullptr, 0, 5);
  }
  ADD_FAILURE() << "a process was left behind";
}

}  // namespace annulus
