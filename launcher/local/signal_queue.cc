#include "launcher/local/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace annulus {

SignalQueue::~SignalQueue() {
  if (fd_ >= 0) close(fd_);
}

bool SignalQueue::Open(const GuardedContext& context) {
  fd_ = signalfd(-1, &context.caught, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) std::fprintf(stderr, "annulus-run: cannot watch signals: %s\n", std::strerror(errno));
  return fd_ >= 0;
}

int SignalQueue::Next() {
  signalfd_siginfo info;
  while (read(fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
  }
  return 0;
}

}  // namespace annulus
