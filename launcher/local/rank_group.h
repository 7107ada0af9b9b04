// RankGroup: the ranks of this host as processes, with everything that they start: reaped, ended and killed together.
//
// Ending means SIGTERM for all, then SIGKILL for those left after the grace time. The owner decides when to end them,
// and why.
//
// Threads: one; the process must be a subreaper and single-threaded.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/local/child_process.h"

namespace annulus {

class RankGroup {
 public:
  using Say = std::function<void(const std::string& text)>;

  struct Ended {
    int index;  // In the order of Start.
    int wait_status;
  };

  explicit RankGroup(Say say) : say_(std::move(say)) {}

  // Starts one more rank; errors as of StartChild.
  Status Start(const ChildProgram& program, ChildProcess* process);

  int running() const;
  bool is_running(int index) const { return ranks_[index].running; }
  pid_t pid(int index) const { return ranks_[index].pid; }

  // Collects the ranks that have ended. Call it at every SIGCHLD.
  std::vector<Ended> Reap();

  // Whether no descendant is left, or those that are left could not be killed.
  bool all_gone() const { return all_gone_; }
  bool gave_up() const { return gave_up_; }

  bool ending() const { return phase_ != Phase::kRunning; }
  void BeginEnding();
  void BeginKilling();
  // Suppresses the message that the grace time was not enough, because somebody is waiting impatiently.
  void set_quiet() { quiet_ = true; }

  // Continues ending when deadline() has come.
  void Advance();
  Deadline deadline() const { return all_gone_ ? kNoDeadline : phase_deadline_; }

 private:
  enum class Phase {
    kRunning,
    kEnding,   // All have been asked to end (SIGTERM).
    kKilling,  // All are being killed.
  };
  struct Rank {
    pid_t pid;
    bool running;
  };

  void KeepKilling();

  const Say say_;
  std::vector<Rank> ranks_;
  Phase phase_ = Phase::kRunning;
  Deadline phase_deadline_ = kNoDeadline;
  Deadline give_up_ = kNoDeadline;  // When killing is given up.
  bool quiet_ = false;
  bool all_gone_ = false;
  bool gave_up_ = false;
};

}  // namespace annulus
