// AgentProcess: the process through which annulus-run reaches the agent on one host: ssh or, for this host, the agent
// itself. Keeps what the process writes to standard error, to explain a failure with it, and sees to it that it ends.
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
#include "launcher/job/output.h"
#include "launcher/local/child_process.h"

namespace annulus {

class AgentProcess {
 public:
  AgentProcess() = default;
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  // Starts `program`, whose standard streams this sets. The caller owns the two descriptors: one reads what the process
  // writes to standard output, the other writes to its standard input.
  Status Start(ChildProgram program, int* output, int* input);

  pid_t pid() const { return pid_; }
  // Wait status from waitpid; none while it runs.
  const std::optional<int>& exit() const { return exit_; }
  void OnExit(int wait_status);
  void Kill();

  // For poll; call ReadErrors when there is something.
  pollfd Polled() const { return {errors_->fd(), POLLIN, 0}; }
  void ReadErrors() { errors_->ReadSome(); }

  // Its output has ended, so it should exit soon. Kills it when it takes too long. Called again until exit().
  void AwaitExit();
  Deadline deadline() const { return exit_deadline_; }

  // The name of its program, for messages.
  const std::string& name() const { return name_; }
  // How it ended and its last line of standard error; "" while it runs.
  std::string DescribeEnd() const;
  // Its last line of standard error between `before` and `after`; "" when there is none.
  std::string LastLine(const std::string& before, const std::string& after = "") const;
  // The whole lines of standard error since the last call.
  std::vector<std::string> TakeLines() { return words_.TakeLines(); }

 private:
  // Gathers lines of standard error; in a flood the oldest ones are dropped.
  class Words : public LineTarget {
   public:
    bool full() const override { return false; }
    bool broken() const override { return false; }
    void AddBytes(std::string_view bytes) override;
    std::string Last() const;
    std::vector<std::string> TakeLines();

   private:
    static constexpr size_t kMaxBytes = 16 * 1024;
    std::string text_;
  };

  std::string name_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
  Words words_;
  std::unique_ptr<LineSource> errors_;
  Deadline exit_deadline_ = kNoDeadline;
};

}  // namespace annulus
