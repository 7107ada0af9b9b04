// Watch: annulus-run --watch. Once a second it shows what every rank is doing: on a terminal as a table that is redrawn
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
  // Writes to `target`, which leads to `fd`. `redraws`: as a table, if that is a terminal.
  Watch(LineTarget* target, int fd, bool redraws);

  // Call before ranks are started. Errors: kSystem.
  Status Begin(int nranks);

  // The rank's environment variable, as "NAME=value".
  std::string VariableOf(int rank) const { return page_.VariableOf(rank); }
  // The text that each line to `fd` must begin with, so that the line replaces the table.
  std::string LinePrefix(int fd) const;

  Deadline next() const { return next_; }
  // Shows the next state if it is due.
  void Advance();
  // Ends the display: removes the table.
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
