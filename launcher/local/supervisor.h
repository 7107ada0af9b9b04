// Supervisor: starts the ranks of a job on this machine, forwards their output and ends them together.
//
// Everything happens in one poll loop over the ranks' output, the launcher's own and a signalfd. The first rank that
// fails ends all ranks; so does a signal, or the end of the job's time.
//
// Threads: one.
#pragma once

#include <string>

#include "base/clock.h"
#include "launcher/job/arguments.h"
#include "launcher/job/console.h"
#include "launcher/job/drain_timer.h"
#include "launcher/job/job.h"
#include "launcher/job/judgement.h"
#include "launcher/job/line_sources.h"
#include "launcher/local/guardian.h"
#include "launcher/local/rank_group.h"
#include "launcher/local/signal_queue.h"
#include "launcher/local/verdict_notes.h"
#include "launcher/watch/watch.h"
#include "transport/port_handout.h"

namespace annulus {

class Supervisor {
 public:
  Supervisor(const RunArguments& arguments, const Job& job, const GuardedContext& context);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Runs the job until all processes are gone and all output is written. Returns annulus-run's exit status.
  int Run();

 private:
  void StartRanks();
  void PollOnce();
  int PollTimeoutMs() const;
  void OnSignals();
  void Interrupt(int signal);
  void Reap();
  void Advance();
  void AdvanceRunning();
  // Whether a rank has failed and the cause has not been named yet.
  bool Judges() const { return !judgement_.empty() && !ranks_.ending(); }
  void Judge();
  bool Finished() const;
  void Say(const std::string& text);

  const RunArguments& arguments_;
  const Job& job_;
  const GuardedContext& context_;
  SignalQueue signals_;
  Console console_;
  Watch watch_;
  LineSources sources_;
  PortHandout port_;
  RankGroup ranks_;
  VerdictNotes notes_;
  Judgement judgement_;
  Deadline job_deadline_ = kNoDeadline;
  DrainTimer drain_;
  int exit_status_ = 0;
};

}  // namespace annulus
