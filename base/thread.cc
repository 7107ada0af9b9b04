#include "base/thread.h"

#include <signal.h>

#include <system_error>
#include <utility>

namespace annulus {

Status StartThread(const char* what, std::function<void()> body, std::thread* thread) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    status = Status::System("cannot start " + std::string(what), error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace annulus
