// TwoHop: large allreduces and their halves between ranks that share memory. Each rank folds its own chunk from the
// inputs of all, and sends the result to all (TwoHopSchedule): a direct reduce-scatter and allgather, elsewhere called
// a two-shot allreduce. It folds in the order of the ring, so the bits are those of the ring. Large reduce-scatters and
// allgathers are one of the hops alone.
//
// Where all buffers that peers read are registered, so that they are read in place, each of n ranks reads and writes
// (3n-1)/n times the size of an allreduce; the ring, 5(n-1)/n times, in 2(n-1) hops. Where they are not, the ring is
// faster. So unless the user names the algorithm, the ranks first tell each other in one hop whether their buffers are
// registered, and use a ring unless all are.
//
// Threads: as Runner.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/algorithms/one_hop/hop_fold.h"
#include "collectives/algorithms/one_hop/short_hop.h"
#include "collectives/algorithms/ring/ring.h"
#include "collectives/algorithms/row.h"
#include "collectives/algorithms/two_hop/hop_link.h"
#include "collectives/algorithms/two_hop/two_hop_schedule.h"

namespace annulus {

extern const AlgorithmRow kTwoHopRow;

class TwoHop final : public Runner {
 public:
  TwoHop(int rank, const AlgorithmJob& job, const Links* links);

  void Start(const ScheduleParams& params, const Work* work) override;
  Status Progress(bool* moved) override {
    return stage_ == Stage::kRing ? ring_.Progress(moved) : Runner::Progress(moved);
  }
  bool done() const override { return stage_ == Stage::kRing ? ring_.done() : stage_ == Stage::kDone; }
  bool WaitsFor(const Endpoint* endpoint) const override;
  int AwaitedPeer() const override;
  const std::vector<Endpoint*>& endpoints() const override {
    return stage_ == Stage::kRing ? ring_.endpoints() : endpoints_;
  }

  // Bytes that the runner holds.
  static size_t MemoryBytes(const AlgorithmJob& job);

 private:
  enum class Stage {
    kAsks,  // The ranks tell each other whether their buffers are registered.
    kHops,
    kRing,
    kDone,
  };

  Status Advance(bool* moved) override;
  // Whether all peers can read where it is what they have to read.
  bool IsRegistered() const;
  // Whether all peers can read these bytes where they are. Asks each link.
  bool IsRegistered(const std::byte* data, size_t bytes) const;
  Status Ask(bool* moved);
  void StartHops();
  Status Hop(bool* moved);
  // Folds the slices that have come from all, or copies those of an allgather. Sets *moved when something changed.
  Status Fold(bool* moved);
  // Whether that slice has come from all; then fold_ knows where it is.
  bool HasArrived(uint64_t slice);

  const bool asks_;                   // The user did not name the algorithm.
  const int ahead_;                   // Slices that are sent before the first result.
  std::vector<HopLink> links_;        // links_[k]: with the rank 1 + k ahead.
  std::vector<Endpoint*> endpoints_;  // endpoints_[k]: to the rank 1 + k ahead.
  ScheduleParams params_;
  const Work* work_ = nullptr;
  Stage stage_ = Stage::kDone;

  // The question.
  ShortHop question_;
  Work asking_;             // The work with own_answer_ as its input.
  std::byte own_answer_{};  // 1: registered.

  // The answer "not all".
  Ring ring_;

  // The hops.
  TwoHopSchedule schedule_;
  HopFold fold_;
  bool is_folding_ = false;  // fold_ has begun slice folded_.
  uint64_t folded_ = 0;      // Slices whose result is in the output.
};

}  // namespace annulus
