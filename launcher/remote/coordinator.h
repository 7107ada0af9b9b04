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
#include "launcher/job/console.h"
#include "launcher/job/drain_timer.h"
#include "launcher/job/job.h"
#include "launcher/job/judgement.h"
#include "launcher/local/guardian.h"
#include "launcher/local/input_reader.h"
#include "launcher/local/signal_queue.h"
#include "launcher/remote/host_link.h"

namespace annulus {

class Coordinator {
 public:
  Coordinator(const RunArguments& arguments, const Job& job, const GuardedContext& context);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

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
  void OnSignals();
  void Interrupt(int signal);
  void Reap();

  void OnMessage(HostLink* link, const AgentMessage& message);
  void OnHello(HostLink* link, const std::string& content);
  void OnReserved(const std::string& content);
  void OnRefused(const HostLink& link, const std::string& content);
  void OnStarted(const HostLink& link, const std::string& content);
  void OnRankEnded(const HostLink& link, const std::string& content);
  void ReserveRendezvous();
  void StartRanks(const std::string& rendezvous);

  void AdvanceLinks();
  void AdvancePhase();
  void AdvanceEnd();
  void Fail(const Failure& failure);
  void Judge();
  void BeginEnding();
  void BeginKilling();
  // Ends the job with `status` for the reason in `text`, before or instead of any rank's failure.
  void GiveUp(int status, const std::string& text);
  bool AllRanksGone() const;
  bool AllClosed() const;
  bool Finished() const;
  int CountRunning() const;
  void Say(const std::string& text) { console_.err()->AddLine("annulus-run: ", text); }

  const RunArguments& arguments_;
  const Job& job_;
  const GuardedContext& context_;
  SignalQueue signals_;
  Console console_;
  InputReader input_;
  std::vector<std::unique_ptr<HostLink>> links_;
  std::vector<Rank> ranks_;
  Judgement judgement_;
  std::string rendezvous_host_;
  Phase phase_ = Phase::kConnecting;
  Deadline phase_deadline_ = kNoDeadline;  // When ranks that are not gone count as lost; kEnding, kKilling.
  Deadline job_deadline_ = kNoDeadline;
  DrainTimer drain_;
  int exit_status_ = 0;
};

}  // namespace annulus
