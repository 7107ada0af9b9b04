// SignalQueue: the signals that reach a launcher process, read from a descriptor so that its poll loop sees them.
//
// Threads: one.
#pragma once

#include "launcher/local/guardian.h"

namespace annulus {

class SignalQueue {
 public:
  SignalQueue() = default;
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  // Begins to receive the signals of context.caught. Returns false on failure, which it has explained.
  bool Open(const GuardedContext& context);

  // Readable when a signal has come.
  int fd() const { return fd_; }

  // Removes and returns the next signal that ends a job; 0 when there is none. Leaves out SIGCHLD: whoever reads
  // signals looks for ended processes anyway.
  int Next();

 private:
  int fd_ = -1;
};

}  // namespace annulus
