// Watch: annulus-run --watch. Once a second it shows what every rank does: on a terminal as a table that is drawn anew
// below the ranks' output, otherwise as a line.
//
// Threads: one.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/job/output.h"
#include "launcher/watch/watch_page.h"
#include "launcher/watch/watch_view.h"

namespace annulus {

class Watch {
 public:
  // Shows on `target`, which leads to `fd`. `redraws`: as a table, if that is a terminal.
  Watch(LineTarget* target, int fd, bool redraws);

  // Before ranks are started. Errors: kSystem.
  Status Begin(int nranks);

  // "NAME=value".
  std::string VariableOf(int rank) const { return page_.VariableOf(rank); }
  // What each line to `fd` has to begin with, so that the table gives way to it.
  std::string LinePrefix(int fd) const;

  Deadline next() const { return next_; }
  // Shows what is due.
  void Advance();
  // No more: takes the table away.
  void End();

 private:
  void Draw(const WatchMoment& now);

  LineTarget* const target_;
  const int fd_;
  const bool table_;
  WatchPage page_;
  Nanoseconds begin_ = 0;
  Deadline next_ = kNoDeadline;
  WatchMoment before_;
};

}  // namespace annulus
