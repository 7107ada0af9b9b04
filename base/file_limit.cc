#include "base/file_limit.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <ctime>

namespace annulus {
namespace {

// RLIM_INFINITY, the largest value, where there is no limit.
rlim_t Limit() {
  rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

sigset_t TheSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  return signals;
}

bool IsPending() {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

}  // namespace

FileLimitGuard::FileLimitGuard() : was_pending_(IsPending()) {
  const sigset_t signals = TheSignal();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

FileLimitGuard::~FileLimitGuard() {
  const sigset_t signals = TheSignal();
  constexpr timespec kNoWait{};
  // A signal that was pending before is not ours to take.
  if (!was_pending_ && IsPending()) sigtimedwait(&signals, nullptr, &kNoWait);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool FileLimitAllows(size_t bytes) { return bytes <= Limit(); }

std::string FileLimitText(int error) {
  const rlim_t limit = Limit();
  if (error != EFBIG || limit == RLIM_INFINITY) return "";
  return " (the limit on the size of files, ulimit -f, is " + std::to_string(limit) + " bytes)";
}

}  // namespace annulus
