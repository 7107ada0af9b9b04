// Supervisor: starts the ranks of a job on this machine, forwards their output and ends them together.
//
// Everything happens in one poll loop over the ranks' output, the launcher's own and a signalfd. The first rank that
// fails ends all ranks; so does a signal, or the end of the job's time.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "launcher/job/arguments.h"
#include "launcher/job/failure.h"
#include "launcher/job/job.h"
#include "launcher/job/output.h"
#include "launcher/local/guardian.h"
#include "launcher/local/rank_group.h"
#include "launcher/local/verdict_notes.h"
#include "launcher/watch/watch.h"
#include "transport/port_handout.h"

namespace annulus {

class Supervisor {
 public:
  Supervisor(const RunArguments& arguments, const Job& job, const GuardedContext& context);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  // Runs the job until all processes are gone and all output is written. Returns annulus-run's exit status.
  int Run();

 private:
  void StartRanks();
  void PollOnce();
  int PollTimeoutMs() const;
  void TakeSignals();
  void Interrupt(int signal);
  void Reap();
  void Advance();
  void AdvanceRunning();
  bool AwaitsCulprit() const;
  void Judge();
  void CloseOrphanedSources();
  bool Finished() const;
  void Say(const std::string& text);

  const RunArguments& arguments_;
  const Job& job_;
  const GuardedContext& context_;
  int signal_fd_ = -1;
  Sink out_;
  Sink err_;
  Watch watch_;
  std::vector<std::unique_ptr<LineSource>> sources_;
  PortHandout port_;
  RankGroup ranks_;
  VerdictNotes notes_;
  std::vector<Failure> failures_;  // In the order in which they were noticed.
  // A rank has failed; other ranks that have just failed may still show up, and one of them may be the cause.
  bool judging_ = false;
  Deadline judge_at_ = kNoDeadline;
  bool awaiting_ = false;  // Judging takes longer, because a rank that verdicts name still runs.
  Deadline job_deadline_ = kNoDeadline;
  Deadline drain_deadline_ = kNoDeadline;  // For writing the remaining output after an interrupt.
  bool interrupted_ = false;
  bool draining_ = false;  // No descendant is left, only output.
  int exit_status_ = 0;
};

}  // namespace annulus
