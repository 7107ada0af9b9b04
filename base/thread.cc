#include "base/thread.h"

#include <signal.h>

#include <new>
#include <system_error>
#include <utility>

namespace annulus {

Status StartThread(const char* what, std::function<void()> body, std::thread* thread) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return Status::System("cannot start " + std::string(what), error.code().value());
  } catch (const std::bad_alloc&) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return Status(Code::kOutOfMemory);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return Status();
}

}  // namespace annulus
