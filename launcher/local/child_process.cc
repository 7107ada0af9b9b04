#include "launcher/local/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "launcher/job/exit_status.h"

namespace annulus {
namespace {

// Both ends of a pipe, closed on exec and on destruction unless taken.
class Pipe {
 public:
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }

  bool Open() { return pipe2(ends_, O_CLOEXEC) == 0; }
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void CloseWriter() {
    close(ends_[1]);
    ends_[1] = -1;
  }
  int TakeReader() {
    const int reader = ends_[0];
    ends_[0] = -1;
    return reader;
  }

 private:
  int ends_[2] = {-1, -1};
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the child, where only async-signal-safe calls are sure to work. Returns when something failed, with errno
// set.
void BecomeProgram(const ChildProgram& program, pid_t parent, int out_fd, int err_fd, char** arguments,
                   char** variables) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (getppid() != parent) _exit(128 + SIGKILL);  // The parent died before the line above.
  if (program.own_session) {
    setsid();
    for (const int key : {SIGTSTP, SIGTTIN, SIGTTOU}) signal(key, SIG_DFL);
  }
  int input_fd = program.input_fd;
  if (input_fd == ChildProgram::kNoInput) input_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input_fd < 0 || (input_fd != STDIN_FILENO && dup2(input_fd, STDIN_FILENO) < 0)) return;
  if (program.capture && (dup2(out_fd, STDOUT_FILENO) < 0 || dup2(err_fd, STDERR_FILENO) < 0)) return;
  // Only speed depends on it: where the system refuses, or has just removed a CPU, the program runs all the same.
  if (!program.cpus.empty()) sched_setaffinity(0, program.cpus.size() * sizeof(cpu_set_t), program.cpus.data());
  if (sigprocmask(SIG_SETMASK, &program.signal_mask, nullptr) != 0) return;
  environ = variables;  // execvp searches the PATH of this environment.
  execvp(arguments[0], arguments);
}

}  // namespace

Status StartChild(const ChildProgram& program, ChildProcess* process) {
  Pipe out;
  Pipe err;
  Pipe failure;  // Closes without data when the program starts.
  if (!failure.Open() || (program.capture && (!out.Open() || !err.Open()))) {
    return Status::System("cannot make a pipe", errno);
  }
  std::vector<char*> arguments = Pointers(program.command);
  std::vector<char*> variables = Pointers(program.environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Status::System("cannot make a process", errno);
  if (pid == 0) {
    BecomeProgram(program, parent, out.writer(), err.writer(), arguments.data(), variables.data());
    const int cause = errno;
    [[maybe_unused]] const ssize_t written = write(failure.writer(), &cause, sizeof cause);
    _exit(127);
  }
  failure.CloseWriter();
  int cause = 0;
  ssize_t bytes;
  do {
    bytes = read(failure.reader(), &cause, sizeof cause);
  } while (bytes < 0 && errno == EINTR);
  if (bytes > 0) {
    waitpid(pid, nullptr, 0);
    return Status(Code::kInvalidArgument, "cannot run \"" + program.command[0] + "\": " + std::strerror(cause),
                  Status::kNoRank, cause);
  }
  process->pid = pid;
  if (program.capture) {
    fcntl(out.reader(), F_SETFL, O_NONBLOCK);
    fcntl(err.reader(), F_SETFL, O_NONBLOCK);
    process->out_fd = out.TakeReader();
    process->err_fd = err.TakeReader();
  }
  return {};
}

int ExitStatusOf(const Status& status) {
  if (status.code() == Code::kSystem) return kExitCannotLaunch;
  return status.os_errno() == ENOENT ? kExitNotFound : kExitCannotExecute;
}

void RaiseOpenFiles() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace annulus
