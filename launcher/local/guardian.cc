#include "launcher/local/guardian.h"

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "launcher/job/exit_status.h"
#include "launcher/local/process_tree.h"

namespace annulus {
namespace {

constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int kKillTimeoutMs = 10'000;

bool IsIgnored(int signal) {
  struct sigaction action;
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Blocks SIGCHLD, SIGPIPE, SIGXFSZ (writes then fail with EFBIG) and the signals that end the job, except those that
// our caller had ignored (nohup, "&").
void BlockSignals(GuardedContext* context) {
  signal(SIGCHLD, SIG_DFL);  // If it were ignored, exit statuses of children would be lost.
  sigemptyset(&context->caught);
  sigaddset(&context->caught, SIGCHLD);
  sigaddset(&context->caught, SIGRTMIN);
  for (const int ending : kEndingSignals) {
    if (!IsIgnored(ending)) sigaddset(&context->caught, ending);
  }
  sigset_t blocked = context->caught;
  sigaddset(&blocked, SIGPIPE);
  sigaddset(&blocked, SIGXFSZ);
  sigprocmask(SIG_BLOCK, &blocked, &context->original);
}

// Waits for the supervisor, and passes on the signals that are meant for the job. Returns the supervisor's wait status.
int Guard(pid_t supervisor, const sigset_t& caught) {
  while (true) {
    siginfo_t info;
    const int signal = sigwaitinfo(&caught, &info);
    if (signal > 0 && signal != SIGCHLD) {
      // Signals from the terminal (SI_KERNEL) reach the supervisor as well. Others may, too, when they are sent to the
      // process group: the supervisor tells these by their sender (interrupt_filter.h).
      if (info.si_code != SI_KERNEL) kill(supervisor, signal);
      continue;
    }
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid == supervisor && (WIFEXITED(status) || WIFSIGNALED(status))) return status;
    }
  }
}

}  // namespace

int RunGuarded(const std::function<int(const GuardedContext&)>& supervise) {
  GuardedContext context;
  context.guardian = getpid();
  BlockSignals(&context);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::fflush(nullptr);
  const pid_t supervisor = fork();
  if (supervisor < 0) {
    std::fprintf(stderr, "annulus-run: cannot make a process: %s\n", std::strerror(errno));
    return kExitCannotLaunch;
  }
  if (supervisor == 0) {
    prctl(PR_SET_PDEATHSIG, SIGRTMIN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // Not inherited.
    if (getppid() != context.guardian) std::exit(kExitCannotLaunch);
    std::exit(supervise(context));
  }
  const int status = Guard(supervisor, context.caught);
  // First this, as the messages may have to wait for a reader.
  const bool killed = KillDescendants(kKillTimeoutMs);
  if (WIFSIGNALED(status)) {
    std::fprintf(stderr, "annulus-run: the supervisor (pid %d) was killed by signal %d (%s); all ranks are killed\n",
                 supervisor, WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  if (!killed) std::fprintf(stderr, "annulus-run: some processes cannot be killed\n");
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace annulus
