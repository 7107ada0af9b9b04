#include "launcher/local/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/clock.h"

namespace annulus {

SignalQueue::~SignalQueue() {
  if (fd_ >= 0) close(fd_);
}

bool SignalQueue::Open(const GuardedContext& context) {
  guardian_ = context.guardian;
  fd_ = signalfd(-1, &context.caught, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) std::fprintf(stderr, "annulus-run: cannot watch signals: %s\n", std::strerror(errno));
  return fd_ >= 0;
}

int SignalQueue::Next() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    // The guardian's death is no request.
    if (signal == SIGRTMIN) return signal;
    const bool forwarded = info.ssi_code == SI_USER && static_cast<pid_t>(info.ssi_pid) == guardian_;
    using Way = InterruptFilter::Way;
    const Way way = info.ssi_code == SI_KERNEL ? Way::kTerminal : forwarded ? Way::kForwarded : Way::kDirect;
    if (filter_.IsNew(signal, way, Now())) return signal;
  }
  return 0;
}

}  // namespace annulus
