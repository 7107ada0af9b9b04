// HostLink: annulus-run's end of the connection to the agent on one host.
//
// It starts the process that leads there, passes output on to the launcher's streams, and notices when the connection
// is lost. The Coordinator handles the agent's reports.
//
// Threads: one.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/job/hosts.h"
#include "launcher/job/sink.h"
#include "launcher/local/child_process.h"
#include "launcher/remote/agent_pipe.h"
#include "launcher/remote/agent_process.h"
#include "launcher/remote/liveness.h"

namespace annulus {

class HostLink {
 public:
  HostLink(const Placement& placement, Nanoseconds timeout, Sink* out, Sink* err);
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  const Placement& placement() const { return placement_; }
  const std::string& host() const { return placement_.host; }

  // Starts `program`, which runs the agent or connects to it; Open sets its standard streams.
  Status Open(ChildProgram program);

  // Number of entries that AddPolled adds and OnPolled reads.
  static constexpr size_t kPolled = 3;
  void AddPolled(std::vector<pollfd>* polled) const;
  void OnPolled(const pollfd* polled);

  void Send(AgentMessageKind kind, std::string_view content = {});
  // The next message, other than output, which is passed on at once.
  std::optional<AgentMessage> Next();

  // Grants credit for output that has been passed on, reports streams that nobody reads, and reports that this side is
  // alive.
  void Advance();
  Deadline deadline() const;

  pid_t pid() const { return process_.pid(); }
  void OnExit(int wait_status);

  // The agent has answered, with the SSH_CONNECTION that it has: "" for none.
  void OnAnswer(const std::string& ssh_connection) { ssh_connection_ = ssh_connection; }
  bool ready() const { return ssh_connection_.has_value(); }
  const std::string& ssh_connection() const { return *ssh_connection_; }
  // The agent has said that no process is left of its ranks. Their output may still arrive.
  void set_ranks_gone() { ranks_gone_ = true; }
  // The agent has said goodbye: all output has arrived, too.
  void set_gone() { gone_ = true; }
  // Whether nothing is to be expected of the ranks there: they are gone, or lost with their host.
  bool ranks_gone() const { return ranks_gone_ || cut_ || closed(); }
  // The agent has sent a message that no agent sends.
  void set_nonsense() { nonsense_ = true; }

  // Nothing more will arrive, and the process is gone.
  bool closed() const { return process_.exit().has_value() && pipe_ && pipe_->in_fd() < 0; }
  // The failure of the connection; "" as long as there is none. After `gone` there can be none.
  std::string Trouble() const;
  // Ends the process at once; the agent notices and ends its ranks.
  void Cut();

  // The whole lines that ssh or the agent wrote to standard error since it answered.
  std::vector<std::string> TakeWords();

 private:
  // One of the launcher's two streams, for the output of the host's ranks.
  struct Relay {
    Sink* sink = nullptr;
    int64_t owed = 0;      // Credit that the agent has used and has not been granted again yet, in bytes.
    bool dropped = false;  // The agent knows that nobody reads the stream.
  };

  bool PassOn(const AgentMessage& message);
  void GrantCredit(int stream, Relay* relay);

  const Placement placement_;
  const Nanoseconds timeout_;
  AgentProcess process_;
  std::unique_ptr<AgentPipe> pipe_;
  Relay out_;
  Relay err_;
  std::optional<std::string> ssh_connection_;  // None until the agent has answered.
  bool ranks_gone_ = false;
  bool gone_ = false;
  bool cut_ = false;
  bool silent_ = false;
  bool nonsense_ = false;
  Liveness liveness_;
};

}  // namespace annulus
