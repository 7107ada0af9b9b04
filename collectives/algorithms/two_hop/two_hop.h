// TwoHop: allreduces of more than small size between the ranks of one host. Each rank folds its own chunk from the
// inputs of all, and sends the result to all (TwoHopSchedule). Of n ranks each reads and writes (3n-1)/n times the size
// of the call where buffers are registered, so that peers read them in place; the ring reads and writes 5(n-1)/n times
// as much, and takes 2(n-1) hops. It folds in the order of the ring, so the bits are those of the ring.
//
// Field's name: a two-shot allreduce; a direct reduce-scatter and allgather.
//
// Threads: as Runner.
#pragma once

#include <vector>

#include "collectives/algorithms/one_hop/hop_fold.h"
#include "collectives/algorithms/row.h"
#include "collectives/algorithms/two_hop/hop_link.h"
#include "collectives/algorithms/two_hop/two_hop_schedule.h"

namespace annulus {

extern const AlgorithmRow kTwoHopRow;

class TwoHop final : public Runner {
 public:
  TwoHop(int rank, const AlgorithmJob& job, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;
  bool done() const override { return done_; }
  bool WaitsFor(const Endpoint* endpoint) const override;
  int AwaitedPeer() const override;
  const std::vector<Endpoint*>& endpoints() const override { return endpoints_; }

  // Bytes that the runner holds.
  static size_t MemoryBytes(const AlgorithmJob& job);

 private:
  Status Advance(bool* moved) override;
  // Folds the slices that have come from all. Sets *moved when something changed.
  Status Fold(bool* moved);
  // Whether that slice has come from all; then fold_ knows where it is.
  bool HasArrived(uint64_t slice);

  const int ahead_;                   // Slices that are sent before the first result.
  std::vector<HopLink> links_;        // links_[k]: with the rank 1 + k ahead.
  std::vector<Endpoint*> endpoints_;  // endpoints_[k]: to the rank 1 + k ahead.
  TwoHopSchedule schedule_;
  const Work* work_ = nullptr;
  HopFold fold_;
  bool is_folding_ = false;  // fold_ has begun slice folded_.
  uint64_t folded_ = 0;      // Slices whose result is in the output.
  bool done_ = true;
};

}  // namespace annulus
