// SimControlJob: the control roles of all ranks, in virtual time, with threads replaced by scripts. What Control's
// threads do around the roles (waiting for a verdict, leaving) is done here by Control's own rules.
//
// Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/control/control_role.h"
#include "tests/collectives/control/sim_control_world.h"

namespace annulus {

class SimControlJob {
 public:
  SimControlJob(uint64_t seed, int nranks, const std::vector<SimCut>& cuts);
  ~SimControlJob();

  int nranks() const { return static_cast<int>(ranks_.size()); }
  SimClock& clock() { return world_.clock(); }
  void At(Nanoseconds time, std::function<void()> act) { world_.clock().At(time, std::move(act)); }
  // Whether ranks destroy their communicator as soon as they have the verdict.
  void set_leaves_at_verdict(bool leaves) { leaves_at_verdict_ = leaves; }

  // As the functions of Control. What a rank does after its end is ignored; what it does while its process is stopped
  // happens later.
  void Open(int rank);
  void Enter(int rank, const Call& call);
  void Leave(int rank);
  void Report(int rank, const Status& failure, const Call& call, Deadline until = 0);
  void Abort(int rank);
  void Close(int rank);
  // Its process is stopped for a while.
  void Pause(int rank, Nanoseconds time) { world_.Pause(rank, clock().now() + time); }
  // The paths of these ranks are cut at once, as `how` says.
  void Cut(const std::vector<int>& ranks, const SimCut& how) { world_.Cut(ranks, how); }
  void RefuseDials() { world_.RefuseDials(); }
  // Its process is killed.
  void Kill(int rank);

  // Runs until nothing happens any more, or until `limit`.
  void Run(Nanoseconds limit);

  const std::optional<Verdict>& verdict(int rank) const { return ranks_[rank].verdict; }
  // All that it was told, its verdict first, then of ranks that are lost.
  const std::vector<Verdict>& told(int rank) const { return ranks_[rank].told; }
  // When it had its verdict.
  Nanoseconds verdict_at(int rank) const { return ranks_[rank].verdict_at; }
  // Whether its control thread has ended, and when it did after it was asked to.
  bool closed(int rank) const { return ranks_[rank].ended; }
  Nanoseconds closing_time(int rank) const { return ranks_[rank].ended_at - ranks_[rank].closing_since; }
  int cuts_made() const { return world_.cuts_made(); }
  // When the first cut was made; kNoDeadline: never.
  Nanoseconds cut_at() const { return world_.cut_at(); }

 private:
  struct Rank {
    ActivityRecorder activity;
    std::atomic<Nanoseconds> heard_at{0};
    std::atomic<bool> path_is_silent{false};
    std::unique_ptr<ControlRole> role;
    std::optional<Verdict> verdict;
    std::vector<Verdict> told;
    Nanoseconds verdict_at = 0;
    Nanoseconds reported_at = 0;
    Deadline until = 0;  // Deadline of the call that it reported.
    Nanoseconds closing_since = 0;
    Nanoseconds ended_at = 0;
    bool closing = false;
    bool ended = false;  // Its thread, or its process.
  };

  bool Works(int rank) const { return ranks_[rank].role != nullptr && !ranks_[rank].closing; }
  void Conclude(int rank, const Verdict& verdict);
  void AwaitVerdict(int rank);
  void LimitClosing(int rank);
  void End(int rank);

  SimControlWorld world_;
  bool leaves_at_verdict_ = false;
  std::vector<Rank> ranks_;
};

}  // namespace annulus
