// OneHop: every rank sends its data to each rank that needs it, and reduces for itself: one hop of latency, where the
// ring has 2(n-1). It folds in the ring's order, so the bits are the ring's.
//
// Small allreduces and barriers take the short path of the links that have one (ShortHop), and can be repeated.
// Everything else goes by posted slices (HopPeer), as the schedule says. The tags are the same, so ranks need not
// choose alike.
//
// Threads: as Runner.
#pragma once

#include <array>
#include <vector>

#include "collectives/algorithms/one_hop/hop_peer.h"
#include "collectives/algorithms/one_hop/one_hop_schedule.h"
#include "collectives/algorithms/one_hop/short_hop.h"
#include "collectives/algorithms/row.h"

namespace annulus {

extern const AlgorithmRow kOneHopRow;

class OneHop final : public Runner, private Repeatable {
 public:
  OneHop(int rank, int nranks, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;
  Status Progress(bool* moved) override;
  bool done() const override { return done_; }
  bool WaitsFor(const Endpoint* endpoint) const override;
  int AwaitedPeer() const override;
  bool waits_for_device() const override;
  const std::vector<Endpoint*>& endpoints() const override { return endpoints_; }
  Repeatable* repeatable() override { return is_short_ ? this : nullptr; }

  // What the runner of so many ranks holds.
  static size_t MemoryBytes(int nranks);

 private:
  void StartAgain() override;
  bool FinishesAtOnce() override;
  bool TakesShortPath(const ScheduleParams& params, const Work& work) const;
  Status AdvanceShort(bool* moved);
  Status Advance(bool* moved) override;
  void StartPosts();
  Status StoreOwn(bool* moved);
  void PlanFolds(const ScheduleParams& params);
  Status Fold(bool* moved);
  Status FoldAtOnce();
  Status SubmitFold(size_t begin, size_t* end, Device::Ticket* ticket);
  const std::byte* DataOf(int rank) const;

  const int rank_;
  const int nranks_;
  ShortHop short_;
  std::vector<HopPeer> posts_;        // posts_[k] is with the rank 1 + k ahead,
  std::vector<Endpoint*> endpoints_;  // as is endpoints_[k].
  OneHopSchedule schedule_;
  const Work* work_ = nullptr;
  bool is_short_ = false;
  bool done_ = true;
  Step own_step_;  // The own part of the output, when the schedule has it.
  PieceWork own_;
  int folds_ = 0;  // How many of this work there are.
  int fold_ = 0;   // The current one; -1 before the first.
  Step fold_step_;
  PieceWork folded_;
  std::array<const std::byte*, kMaxOneHopRanks> sources_{};  // Of a fold, in its order.
};

}  // namespace annulus
