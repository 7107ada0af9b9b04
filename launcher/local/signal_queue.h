// SignalQueue: the signals that reach a launcher process, read from a descriptor so that its poll loop sees them.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include "launcher/local/guardian.h"
#include "launcher/local/interrupt_filter.h"

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

  // Removes and returns the next signal that ends a job; 0 when there is none. Leaves out SIGCHLD, as whoever reads
  // signals looks for ended processes anyway, and what belongs to a request that has been returned already.
  int Next();

 private:
  int fd_ = -1;
  pid_t guardian_ = -1;
  InterruptFilter filter_;
};

}  // namespace annulus
