// OneHop: every rank sends its data to each rank that needs it, and each rank reduces for itself. This takes one hop of
// latency, where the ring takes 2(n-1). It folds in the order of the ring, so the bits are those of the ring.
//
// Calls in host memory use the short path of the links that have one (ShortHop), and can be repeated. Groups,
// agreements, memory of devices and operations that the user made go by posted slices (HopPeer). Both do what the
// schedule says, and the tags are the same, so ranks need not choose the same path. What has arrived by either path is
// reduced by HopFold.
//
// Threads: as Runner.
#pragma once

#include <vector>

#include "collectives/algorithms/one_hop/hop_fold.h"
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
  const std::vector<Endpoint*>& endpoints() const override { return endpoints_; }
  Repeatable* repeatable() override { return is_short_ ? this : nullptr; }

  // Bytes that the runner holds for `nranks` ranks.
  static size_t MemoryBytes(int nranks);

 private:
  void StartAgain() override;
  Awaits SendFirst(bool looks) override { return short_.SendFirst(looks); }
  bool FinishesAtOnce() override;
  // `largest`: largest slice that this rank sends or receives, in bytes.
  bool UsesShortPath(size_t largest) const;
  Status AdvanceShort(bool* moved);
  // All that comes by the short path is there: makes the output of it.
  Status OnShortArrivals(bool* moved);
  void CopyOwn() const;
  Status Advance(bool* moved) override;
  // Lists the links that the schedule uses. Returns the size of the largest slice on them.
  size_t UseLinks();
  // Begins the fold or folds of the call, if it has any on this rank.
  void StartFold(const ScheduleParams& params);
  Part OwnPart(const ScheduleParams& params) const;
  void StartPosts();
  Status StoreOwn(bool* moved);

  const int rank_;
  const int nranks_;
  ShortHop short_;
  std::vector<HopPeer> posts_;        // posts_[k]: with the rank 1 + k ahead.
  std::vector<Endpoint*> links_;      // links_[k]: to the rank 1 + k ahead.
  std::vector<Endpoint*> endpoints_;  // Those that the latest call uses.
  OneHopSchedule schedule_;
  const Work* work_ = nullptr;
  bool is_short_ = false;
  bool has_output_ = false;  // By the short path: the output is complete.
  bool done_ = true;
  Step own_step_;  // Step for the own part of the output; empty if the schedule has none.
  PieceWork own_;
  HopFold fold_;
};

}  // namespace annulus
