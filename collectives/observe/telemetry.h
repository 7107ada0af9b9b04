// Telemetry: where a communicator's work is recorded: the counters of its monitor and, if somebody asked for them, the
// timeline in a trace file and the board that annulus-run --watch shows.
//
// Threads: OpenTrace, ClaimBoard and AddLink from one, before anything moves; the objects that it holds have their own
// rules.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "collectives/observe/board_claim.h"
#include "collectives/observe/monitor.h"
#include "collectives/observe/trace_file.h"

namespace annulus {

class Telemetry {
 public:
  explicit Telemetry(int nranks) : monitor_(nranks) {}

  // Records a timeline from now on, for the file that TraceFile::Create makes of `pattern`.
  // Errors: kSystem  the file cannot be written now. The timeline is recorded all the same.
  Status OpenTrace(const std::string& pattern, const TraceOwner& owner);

  // Shows the current work on the board that BoardClaim::Acquire finds, if any.
  void ClaimBoard(const char* handed_down, int rank, int nranks);

  // Records a link that was made. `transport` is a literal.
  void AddLink(int peer, int channel, const char* transport, const std::string& description);

  Monitor* monitor() { return &monitor_; }
  // Null when there is no trace.
  TraceFile* trace_file() { return trace_file_.get(); }

 private:
  // These two outlive the monitor, which writes to them.
  std::unique_ptr<TraceFile> trace_file_;
  std::unique_ptr<BoardClaim> board_;
  Monitor monitor_;
};

}  // namespace annulus
