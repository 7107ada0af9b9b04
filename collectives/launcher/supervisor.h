// Supervisor: starts the ranks, forwards their output and ends them together.
//
// Everything happens in one poll loop over the ranks' output, the launcher's own and a signalfd. The first rank that
// fails ends all; so does a signal, or the end of the time that the job was given.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/launcher/arguments.h"
#include "collectives/launcher/guardian.h"
#include "collectives/launcher/job.h"
#include "collectives/launcher/output.h"

namespace annulus {

class Supervisor {
 public:
  Supervisor(const Arguments& arguments, const Job& job, const GuardedContext& context);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();

  // Runs the job to its end, all processes gone and all output written. Returns annulus-run's exit status.
  int Run();

 private:
  enum class Phase {
    kRunning,
    kJudging,  // A rank failed; others that failed just now may still show up, and one of them be the culprit.
    kEnding,   // All have been asked to end (SIGTERM).
    kKilling,  // All are being killed.
  };
  struct Rank {
    pid_t pid = -1;
    bool running = false;
  };
  struct Failure {
    int rank;
    int wait_status;
  };

  bool OpenSignals();
  void StartRanks();
  void PollOnce();
  int PollTimeoutMs() const;
  void TakeSignals();
  void Interrupt(int signal);
  void Reap();
  void Advance();
  void Judge();
  void BeginEnding();
  void BeginKilling();
  void KeepKilling();
  void CloseOrphanedSources();
  void DrainLeftovers();
  bool Finished() const;
  int CountRunning() const;
  void Say(const std::string& text);

  const Arguments& arguments_;
  const Job& job_;
  const GuardedContext& context_;
  int signal_fd_ = -1;
  Sink out_;
  Sink err_;
  std::vector<std::unique_ptr<LineSource>> sources_;
  std::vector<Rank> ranks_;
  std::vector<Failure> failures_;  // In the order in which they were noticed.
  Phase phase_ = Phase::kRunning;
  Deadline phase_deadline_ = kNoDeadline;
  Deadline job_deadline_ = kNoDeadline;
  Deadline give_up_ = kNoDeadline;  // Of killing, and of writing what is left after an interrupt.
  bool interrupted_ = false;
  bool all_gone_ = false;  // No descendant is left.
  int exit_status_ = 0;
};

}  // namespace annulus
