// Judgement: collects the failures of a job's ranks, and tells when to name the one that caused the others.
//
// A rank that loses a peer exits too, and its end may be noticed before that of the peer. So the first failure only
// begins a wait, in which others may show up.
//
// Threads: one.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "launcher/job/failure.h"

namespace annulus {

class Judgement {
 public:
  // `patience`: how long after the first failure its cause may still show up.
  explicit Judgement(Nanoseconds patience) : patience_(patience) {}

  void Add(Failure failure);
  bool empty() const { return failures_.empty(); }

  // Whether to judge now. When the patience is over, a rank that verdicts name and that still runs gets kCulpritTime
  // more. Call it again when a rank has ended, and at the deadline. `any_running`: whether any rank still runs.
  bool Due(bool any_running, const std::function<bool(int rank)>& is_running);
  Deadline deadline() const { return deadline_; }

  // The failure that caused the others. There must be one.
  const Failure& cause() const { return FirstCause(failures_); }

 private:
  const Nanoseconds patience_;
  std::vector<Failure> failures_;  // In the order in which they were noticed.
  Deadline deadline_ = kNoDeadline;
  bool awaits_culprit_ = false;  // The patience is over, and the additional time runs.
};

}  // namespace annulus
