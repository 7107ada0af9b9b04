// Agent: annulus-run on one of several hosts. It runs the ranks of its host as it is ordered through standard input,
// and reports through standard output (agent_pipe.h).
//
// When standard input ends, or nothing arrives for the link timeout, it ends its ranks by itself: whatever happens to
// the connection or to the annulus-run at its other end, no rank stays behind.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "launcher/job/job.h"
#include "launcher/job/line_sources.h"
#include "launcher/job/variables.h"
#include "launcher/local/guardian.h"
#include "launcher/local/input_pipe.h"
#include "launcher/local/rank_group.h"
#include "launcher/local/signal_queue.h"
#include "launcher/local/verdict_notes.h"
#include "launcher/remote/agent_output.h"
#include "launcher/remote/agent_pipe.h"
#include "launcher/remote/liveness.h"
#include "launcher/remote/start_order.h"
#include "transport/port_handout.h"

namespace annulus {

class Agent {
 public:
  // `environment`: the base environment of the ranks; the variables of the start order are added to it.
  Agent(const GuardedContext& context, const char* const* environment);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Serves until all ranks are gone, and that and all their output has been reported, or cannot be reported. Returns
  // the exit status.
  int Run();

 private:
  // What it has reported of the end.
  enum class Said { kNothing, kRanksGone, kGone };

  void PollOnce();
  Deadline NextDeadline() const;
  void OnSignals();
  void Reap();
  void Advance();
  void ReportEnd();

  void OnMessage(const AgentMessage& message);
  void Configure(const std::string& content);
  void Reserve(const std::string& content);
  void Start(const std::string& content);
  Status StartRanks(const StartOrder& order);
  void OnInput(const std::string& content);
  void Grant(const std::string& content);
  void DropOutput(const std::string& content);
  void Refuse(const Status& status, int exit_status);

  // Ends the ranks, because nobody can receive a report any more.
  void LoseHead();
  bool Finished() const;

  const GuardedContext& context_;
  const Variables environment_;
  SignalQueue signals_;
  AgentPipe pipe_;
  AgentOutput out_;
  AgentOutput err_;
  InputPipe input_;
  LineSources sources_;
  RankGroup ranks_;
  VerdictNotes notes_;
  ReservedPort port_;
  PortHandout handout_;
  std::optional<int> first_rank_;  // None until the start order has come.
  Said said_ = Said::kNothing;
  Liveness liveness_;
};

}  // namespace annulus
