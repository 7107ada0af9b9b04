// Console: the two output streams of annulus-run itself, to which it copies the output of all ranks.
//
// Threads: one.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/sink.h"

namespace annulus {

class Console {
 public:
  Sink* out() { return &out_; }
  Sink* err() { return &err_; }

  // Whether everything has been written.
  bool empty() const { return out_.empty() && err_.empty(); }

  // Whether a stream takes no more output for now.
  bool full() const { return out_.full() || err_.full(); }

  // Number of entries that AddPolled adds and OnPolled reads.
  static constexpr size_t kPolled = 2;
  void AddPolled(std::vector<pollfd>* polled) {
    polled->push_back(out_.Polled());
    polled->push_back(err_.Polled());
  }
  void OnPolled(const pollfd* polled) {
    out_.OnPolled(polled[0].revents);
    err_.OnPolled(polled[1].revents);
  }
  // When to poll again at the latest; holds after AddPolled.
  Deadline deadline() const { return std::min(out_.retry(), err_.retry()); }

  // Why standard output cannot be written, once; "" when it can. Where standard error cannot be written, no message
  // would arrive.
  std::string TakeTrouble() {
    if (out_.error() == 0 || std::exchange(reported_, true)) return "";
    return std::string("cannot write standard output: ") + std::strerror(out_.error()) + "; its output is incomplete";
  }
  // The exit status of a job that would end with `status`: no success when output could not be written.
  int ExitStatus(int status) const {
    const bool incomplete = out_.error() != 0 || err_.error() != 0;
    return status == 0 && incomplete ? kExitCannotLaunch : status;
  }

 private:
  Sink out_{STDOUT_FILENO};
  Sink err_{STDERR_FILENO};
  bool reported_ = false;
};

}  // namespace annulus
