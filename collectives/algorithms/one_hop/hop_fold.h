// HopFold: reduces what has arrived in an exchange of one or two hops into the user's output, one step of the schedule
// after the other, in the ring's order; or copies the own input there, where a step only stores.
//
// Threads: one at a time. Nothing allocates.
#pragma once

#include <array>

#include "collectives/algorithms/one_hop/piece_work.h"
#include "collectives/algorithms/work.h"
#include "collectives/core/schedule.h"

namespace annulus {

class HopFold {
 public:
  // The steps of a schedule that fold: `steps` from index `first` on.
  struct Range {
    size_t first = 0;
    int steps = 0;
  };

  HopFold(int rank, int nranks) : rank_(rank), nranks_(nranks) {}

  // Begins the folds of these steps. The schedule and the work stay valid until done.
  void Start(const Schedule* schedule, Range range, const Work* work);
  // Begins a call of which one fold does all: that part of the own input, and what has come.
  void StartWhole(const Part& part, const Work* work);
  // The same call again, with other buffers.
  void StartAgain() { fold_ = -1; }

  // Sets what the rank 1 + k ahead has sent. All of it must be there before folding begins, and stay until done.
  void SetArrival(size_t k, const std::byte* data) {
    const size_t rank = static_cast<size_t>(rank_) + 1 + k;
    arrivals_[rank < static_cast<size_t>(nranks_) ? rank : rank - static_cast<size_t>(nranks_)] = data;
  }

  // Whether one fold of the whole call does, so that FoldAll may be used.
  bool is_single() const { return schedule_ == nullptr; }
  // Folds everything now. For a call whose buffers are one piece of host memory each.
  void FoldAll();
  // Folds as far as the memory's domains allow. Sets *moved when something changed.
  Status Advance(bool* moved);
  bool done() const { return fold_ == folds_; }

 private:
  void MakeOp(const Work::Place& input, const Work::Place& output, size_t begin, size_t bytes);
  void Trace(size_t bytes, Nanoseconds clock) const;

  const int rank_;
  const int nranks_;
  const Schedule* schedule_ = nullptr;  // Null: one fold of the whole call.
  size_t first_ = 0;                    // Index of its first step that folds.
  const Work* work_ = nullptr;
  int folds_ = 0;  // Number of folds of this work.
  int fold_ = 0;   // Current fold; -1 before the first.
  Step step_;      // Step of the current fold.
  SliceOp op_;     // Operation of the current fold; what all folds of a call share is set once.
  PieceWork folded_;
  std::array<const std::byte*, kMaxOneHopRanks> arrivals_{};  // By rank; not set for this rank.
  std::array<const std::byte*, kMaxOneHopRanks> sources_{};   // Sources of the current fold, in its order.
};

}  // namespace annulus
