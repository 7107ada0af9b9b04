// FileLimitGuard: lets calls that make or fill files fail, instead of ending the process, at the limit on the size of
// files (ulimit -f, RLIMIT_FSIZE). Beyond the limit the kernel sends SIGXFSZ to the calling thread, which by default
// ends the process. Memory files are limited too.
//
// Threads: each guard belongs to the thread that made it.
#pragma once

#include <csignal>
#include <string>

namespace annulus {

// While it exists, such a call fails with EFBIG and no signal is delivered. Changes this thread's signal mask and
// restores it; how the process handles the signal does not change.
class FileLimitGuard {
 public:
  FileLimitGuard();
  ~FileLimitGuard();
  FileLimitGuard(const FileLimitGuard&) = delete;
  FileLimitGuard& operator=(const FileLimitGuard&) = delete;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

// Whether this process may make a file of that size.
bool FileLimitAllows(size_t bytes);

// For a message about `error`: " (the limit on the size of files, ulimit -f, is 512 bytes)" if the limit can be its
// cause, otherwise "".
std::string FileLimitText(int error);

}  // namespace annulus
