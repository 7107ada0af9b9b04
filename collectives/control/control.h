// Control: one rank's connection to the arbiter. Its thread notices deaths, answers queries and delivers the verdict;
// on rank 0 it is the arbiter. Only Enter, Leave and has_verdict are on the data path.
//
// Threads: Enter, Leave, Doubt and Report from the thread that drives the communicator; Abort, has_verdict and verdict
// from any; Start, Close and the destructor from one thread, when no other call is in progress or will follow.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/identity.h"
#include "base/secret.h"
#include "base/status.h"
#include "collectives/control/control_activity.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/verdict.h"
#include "collectives/control/verdict_cell.h"

namespace annulus {

struct ControlConfig {
  int rank = 0;
  int nranks = 1;
  Secret job_key;  // As in Options.
  bool encrypts = false;
  Identity identity;               // That of the links.
  ControlConnections connections;  // From Bootstrap.
  // Called at most once, when the verdict is known; not after Close() has returned. Must not block. Runs on the control
  // thread, or within Abort or Report when these settle the verdict themselves.
  std::function<void()> on_verdict;
};

class Control {
 public:
  // Time that Report waits for the arbiter after its last sign of life, which comes every Arbiter::kSignInterval while
  // it investigates.
  static constexpr Nanoseconds kVerdictGrace = 1500 * kMillisecond;
  // Time that Report waits in all, where this process is not paused meanwhile.
  static constexpr Nanoseconds kMostVerdictWait = 12 * kSecond;
  // Pauses of this process after which Report begins to wait anew.
  static constexpr int kMostPauses = 3;
  // Time that Close waits for sent messages to arrive; longer, but bounded by the grace of ControlJudge and
  // ControlMember, while a broken connection is made again.
  static constexpr Nanoseconds kCloseGrace = 200 * kMillisecond;
  // Time that passing on a verdict reached alone may take, so that a process may abort and then exit at once.
  static constexpr Nanoseconds kSettleGrace = 50 * kMillisecond;

  // Starts the thread. Errors: kSystem.
  static Status Start(ControlConfig config, std::unique_ptr<Control>* control);

  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  ~Control();

  // Record what this rank is doing: it entered `call`, or finished it. Sequences ascend. Wait-free, a few nanoseconds.
  void Enter(const Call& call) { activity_.Enter(call); }
  void Leave() { activity_.Leave(); }

  bool has_verdict() const { return verdict_.has(); }
  // Constant once has_verdict().
  const Verdict& verdict() const { return verdict_.get(); }
  // Returns the reason, if there is one, why `ranks` cannot all go on together: an abort, a verdict that names no
  // rank or one of them, or the loss of one of them, which may come after the verdict. Without rank 0 there is no more
  // news: then the verdict is the reason, kVerdictGrace later. With `expected`, waits up to kVerdictGrace for a reason.
  // Any thread.
  std::optional<Verdict> Parted(const std::vector<int>& ranks, bool expected);

  // Reports to the arbiter that `failure` happened on this rank in `call` (sequence 0: outside any), and returns the
  // common verdict. Blocks while rank 0 gives signs of life, up to kMostVerdictWait; kVerdictGrace after the last one,
  // or after a pause of this process, but not before the call's deadline `until`, this rank reaches a verdict alone. A
  // rank 0 that is paused for less is not at fault.
  Verdict Report(const Status& failure, const Call& call, Deadline until = 0);

  // Tells the arbiter that a collective takes long here, so that it asks whether all ranks agree on the call. Ranks
  // that disagree may wait for each other on links where no tag shows it. Returns at once.
  void Doubt();

  // Gives this rank the verdict kAborted at once, and every other rank soon after. No effect after a verdict. Bounded
  // by kSettleGrace.
  void Abort(const std::string& reason = "");

  // When a report made at `start` is answered by this rank itself, if rank 0 gave its last sign of life at `heard`.
  static constexpr Deadline VerdictDue(Nanoseconds start, Nanoseconds heard, Deadline until) {
    return std::max(std::min(std::max(start, heard) + kVerdictGrace, start + kMostVerdictWait), until);
  }

  // Says goodbye, closes the connections and ends the thread. Idempotent. Bounded by kCloseGrace, or by
  // ControlRole::kPathGrace where the goodbye does not arrive; on rank 0 by ControlJudge::kLongestLeave while ranks are
  // away, or come and go.
  void Close();

 private:
  class Thread;
  bool AwaitVerdict(Deadline until);
  explicit Control(std::function<void()> on_verdict);
  void Conclude(const Verdict& verdict);

  const std::function<void()> on_verdict_;
  ActivityRecorder activity_;
  VerdictCell verdict_;
  std::atomic<Nanoseconds> judge_lost_at_{0};  // 0 while rank 0 is there.
  std::atomic<Nanoseconds> heard_at_{0};       // Latest sign of life of rank 0.
  std::atomic<bool> path_is_silent_{false};    // As in ControlRoleConfig.
  std::unique_ptr<Thread> thread_;             // Null once closed.
};

}  // namespace annulus
