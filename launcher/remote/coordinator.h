// Coordinator: runs a job on several hosts through the agents there.
//
// First all agents must answer; then the first host reserves the rendezvous; then all ranks start. After that the rules
// of the Supervisor apply: the first rank that fails ends all ranks, and so does a lost host, a signal, or the end of
// the job's time.
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
#include "launcher/local/input_reader.h"
#include "launcher/remote/host_link.h"

namespace annulus {

class Coordinator {
 public:
  Coordinator(const RunArguments& arguments, const Job& job, const GuardedContext& context);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();

  // Runs the job until all processes on all hosts are gone and all output is written. Returns annulus-run's exit
  // status.
  int Run();

 private:
  enum class Phase {
    kConnecting,  // Until all agents have answered.
    kReserving,   // Until the first host has the rendezvous.
    kRunning,
    kJudging,  // Something failed; a failure elsewhere that came first may still show up.
    kEnding,   // The agents have been told to end their ranks.
    kKilling,  // The agents have been told to kill their ranks at once.
  };
  struct Rank {
    pid_t pid = -1;
    bool running = true;
  };

  void OpenLinks();
  void PollOnce();
  Deadline NextDeadline() const;
  void TakeSignals();
  void Interrupt(int signal);
  void Reap();

  void Handle(HostLink* link, const ChannelFrame& frame);
  void TakeHello(HostLink* link, const std::string& content);
  void TakeReserved(const std::string& content);
  void TakeRefused(const HostLink& link, const std::string& content);
  void TakeStarted(const HostLink& link, const std::string& content);
  void TakeRankEnded(const HostLink& link, const std::string& content);
  void ReserveRendezvous();
  void StartRanks(const std::string& rendezvous);

  void AdvanceLinks();
  void AdvancePhase();
  void Fail(const Failure& failure);
  bool AwaitsCulprit() const;
  void AdvanceJudging();
  void Judge();
  void BeginEnding();
  void BeginKilling();
  // Ends the job with `status` for the reason in `text`, before or instead of any rank's failure.
  void GiveUp(int status, const std::string& text);
  bool AllClosed() const;
  bool Finished() const;
  int CountRunning() const;
  void Say(const std::string& text) { err_.AddLine("annulus-run: ", text); }

  const RunArguments& arguments_;
  const Job& job_;
  const GuardedContext& context_;
  int signal_fd_ = -1;
  Sink out_;
  Sink err_;
  InputReader input_;
  std::vector<std::unique_ptr<HostLink>> links_;
  std::vector<std::string> ssh_connections_;  // By link: SSH_CONNECTION as its agent reported it.
  std::vector<Rank> ranks_;
  std::vector<Failure> failures_;  // In the order in which they were noticed.
  std::string rendezvous_host_;
  Phase phase_ = Phase::kConnecting;
  Deadline phase_deadline_ = kNoDeadline;
  bool awaiting_ = false;  // Judging takes longer, because a rank that verdicts name still runs.
  Deadline job_deadline_ = kNoDeadline;
  Deadline drain_deadline_ = kNoDeadline;  // For writing the remaining output after an interrupt.
  bool interrupted_ = false;
  int exit_status_ = 0;
};

}  // namespace annulus
