// Console: the two output streams of annulus-run itself, to which it copies the output of all ranks.
//
// Threads: one.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <vector>

#include "launcher/job/output.h"

namespace annulus {

class Console {
 public:
  Sink* out() { return &out_; }
  Sink* err() { return &err_; }

  // Whether everything has been written.
  bool empty() const { return out_.empty() && err_.empty(); }

  // Number of entries that AddPolled adds and OnPolled reads.
  static constexpr size_t kPolled = 2;
  void AddPolled(std::vector<pollfd>* polled) const {
    polled->push_back(out_.Polled());
    polled->push_back(err_.Polled());
  }
  void OnPolled(const pollfd* polled) {
    out_.OnPolled(polled[0].revents);
    err_.OnPolled(polled[1].revents);
  }

 private:
  Sink out_{STDOUT_FILENO};
  Sink err_{STDERR_FILENO};
};

}  // namespace annulus
