#include "base/thread.h"

#include <signal.h>

#include <system_error>
#include <utility>

namespace annulus {
namespace {

// Blocks all signals of the calling thread while it exists; a new thread inherits that.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Status StartThread(const char* what, std::function<void()> body, std::thread* thread) {
  const SignalsBlocked blocked;  // Until the end also where memory runs out.
  try {
    *thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return Status::System("cannot start " + std::string(what), error.code().value());
  }
  return Status();
}

}  // namespace annulus
